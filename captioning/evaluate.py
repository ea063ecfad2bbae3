"""Score a file of captions against human ones.

    python -m captioning.evaluate results.json --references coco_karpathy_test_gt.json
    python -m captioning.evaluate results.json --references coco_karpathy_test_gt.json \\
        --images coco/val2014 --metrics coco length diversity clipscore retrieval perplexity
    python -m captioning.evaluate --compare mle.json smile.json --references GT.json

The captions are a COCO results file, a list of {image_id, caption}, whatever program wrote it. The
metrics that run models share their work where torchrun starts several processes. --compare says how
two programs' captions of the same images differ, and how surely.
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Literal, Optional, get_args, get_origin, get_type_hints

from captioning.data.caption_files import (
    ids_by_name,
    read_predictions,
    read_references,
    with_references,
)
from captioning.files.local_copies import local
from captioning.files.writing import require_folder, write_json
from captioning.metrics.bootstrap import INTERVALS
from captioning.metrics.compare_scores import compare, format_comparison, same_images
from captioning.metrics.evaluator import Settings
from captioning.metrics.image_files import find_images
from captioning.metrics.java import MEMORY
from captioning.metrics.registry import DEFAULT_METRICS, EVALUATORS, NEED_IMAGES, build_evaluators
from captioning.metrics.score_table import format_table
from captioning.metrics.scoring import score, versions, write_scores
from captioning.runtime import distributed
from captioning.runtime.program import exit_code


def _arguments(argv):
    parser = argparse.ArgumentParser(
        prog="python -m captioning.evaluate",
        description="Score a file of captions against human ones.",
    )
    add = parser.add_argument
    add("predictions", nargs="?", help="COCO results: a JSON list of {image_id, caption}")
    add("--compare", nargs=2, metavar=("A", "B"), help="two such files, instead of predictions")
    captions = "COCO ground truth, what training reads, or {image id: [captions]}"
    add("--references", required=True, help=f"human captions: {captions}")
    files = "metrics.json and per_caption.jsonl, or comparison.json"
    add("--output_dir", help=f"where to write {files}")
    names = f"of {', '.join(EVALUATORS)} (default: {' '.join(DEFAULT_METRICS)})"
    shape = {"nargs": "+", "choices": EVALUATORS, "default": DEFAULT_METRICS, "metavar": "NAME"}
    add("--metrics", **shape, help=names)
    for name, hint in get_type_hints(Settings, include_extras=True).items():
        default, text = getattr(Settings, name), getattr(hint, "__metadata__", [""])[0]
        if default is False:
            add(f"--{name}", action="store_true", help=text)
        elif text:
            add(f"--{name}", default=default, help=text, **_kind(hint.__origin__, default))
    parser.set_defaults(device="auto")
    arguments = parser.parse_args(argv)
    if (arguments.predictions is None) == (arguments.compare is None):
        parser.error("give one file of predictions, or --compare and two")
    if arguments.batch_size < 1:
        parser.error("--batch_size has to be 1 or more")
    if not arguments.spice_timeout > 0:
        parser.error("--spice_timeout has to be more than 0")
    if not re.match(MEMORY, arguments.spice_heap):
        parser.error("--spice_heap has to be such as 4G or 800m")
    return arguments


def _kind(hint, default):
    """What the parser has to know of a setting of this type."""
    if isinstance(default, tuple):
        return {"nargs": "+", "type": Path, "metavar": "FILE"}
    if get_origin(hint) is Literal:
        return {"choices": get_args(hint)}
    if default is None and hint != Optional[str]:
        return {"type": Path}
    return {"type": str if default is None else type(default)}


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program on its arguments (those of the command line); return its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    arguments = _arguments(argv)
    return exit_code(lambda: _run(arguments, argv), "stopped: nothing was written")


def _run(arguments, argv):
    """Score, and on rank 0 print and write. Raises UserError."""
    device, is_main = str(distributed.start(arguments.device)), distributed.is_main()
    references = read_references(arguments.references)
    ids = ids_by_name(local(arguments.references))
    files = arguments.compare or [arguments.predictions]
    predictions, *others = [_read(path, references, ids, is_main) for path in files]
    if is_main and arguments.output_dir:
        require_folder(Path(arguments.output_dir))  # before the work, not after it
    evaluators = _evaluators(arguments, predictions, device)
    command = shlex.join(["python", "-m", "captioning.evaluate", *argv])
    if others:
        second = same_images(predictions, others[0])
        both = [score(captions, references, evaluators) for captions in (predictions, second)]
        if is_main:
            _show_comparison(*both, arguments.output_dir, command)
        return
    scores = score(predictions, references, evaluators)
    if not is_main:
        return
    print(format_table(scores))
    left_out = len(references) - len(predictions)
    if left_out:
        print(
            f"warning: {left_out} of {len(references)} images with references have no "
            "prediction and were not scored",
            file=sys.stderr,
        )
    if arguments.output_dir:
        write_scores(arguments.output_dir, scores, predictions, command)


def _read(path, references, ids, is_main):
    """Return the predictions of a file that have references."""
    predictions, lacking = with_references(read_predictions(path, ids), references)
    if lacking and is_main:
        print(
            f"warning: {path}: {len(lacking)} of {len(lacking) + len(predictions)} images with a "
            f"prediction have no references and were not scored, the first is {lacking[0]!r}",
            file=sys.stderr,
        )
    return predictions


def _evaluators(arguments, predictions, device):
    images = None
    if arguments.images and set(NEED_IMAGES).intersection(arguments.metrics):
        images = find_images(arguments.images, local(arguments.references), predictions)
    # Of a file {image id: image file} the images start in its folder, and so do a split's.
    root = arguments.images
    root = root.parent if root and root.is_file() else root
    found = {"images": images, "pool_root": root, "device": device}
    given = {field.name for field in fields(Settings)} - set(found)
    settings = Settings(**found, **{name: getattr(arguments, name) for name in given})
    return build_evaluators(arguments.metrics, settings)


def _show_comparison(first, second, folder, command):
    differences = compare(first, second)
    print(format_comparison(differences))
    skipped = {**first.skipped, **second.skipped}
    for reason in dict.fromkeys(skipped.values()):
        names = ", ".join(name for name in skipped if skipped[name] == reason)
        print(f"{names} skipped: {reason}")
    if folder:
        content = {
            "differences": {name: asdict(found) for name, found in differences.items()},
            "settings": [first.settings, second.settings, {"intervals": INTERVALS}],
            "skipped": skipped,
            "command": command,
            "versions": versions(),
        }
        write_json(content, Path(folder, "comparison.json"))


if __name__ == "__main__":
    sys.exit(main())
