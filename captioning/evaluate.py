"""Score a file of captions against human captions.

    python -m captioning.evaluate results.json --references coco_karpathy_test_gt.json
    python -m captioning.evaluate results.json --references coco_karpathy_test_gt.json \\
        --images coco/val2014 --metrics coco length diversity clipscore retrieval perplexity
    python -m captioning.evaluate --compare mle.json smile.json --references GT.json

The captions are a COCO results file of any program, or any other file of captions. --compare prints
the differences between the scores of two files for the same images, with confidence intervals and
p-values.
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import argparse
import re
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from captioning.data.caption_files import (
    ids_by_name,
    image_of,
    read_predictions,
    read_references,
    with_references,
)
from captioning.files.cache import local
from captioning.files.columns import normal_name
from captioning.files.stores import require_writable
from captioning.files.writing import write_json
from captioning.metrics import DEFAULT_EVALUATORS, EVALUATORS
from captioning.metrics.base import Settings, build_evaluators, evaluator_classes
from captioning.metrics.image_files import find_images
from captioning.metrics.intervals import INTERVALS
from captioning.metrics.options import options_of
from captioning.metrics.scoring import (
    compare,
    format_comparison,
    format_table,
    same_images,
    score,
    skipped_lines,
    versions,
    write_scores,
)
from captioning.runtime import distributed
from captioning.runtime.program import program_parser, run_program
from captioning.runtime.progress import log_line


def _parse_arguments(argv):
    parser = program_parser(
        "python -m captioning.evaluate",
        "Score a file of captions against human captions.",
        usage="%(prog)s PREDICTIONS [--references FILE] [options]; --help lists them",
    )
    add = parser.add_argument
    add("predictions", nargs="?", help="COCO results, or any other file of captions")
    add("--compare", nargs=2, metavar=("A", "B"), help="two such files, instead of predictions")
    captions = "COCO ground truth, any training format, or {image id: [captions]}"
    add("--references", help=f"human captions: {captions}; without, what needs none is scored")
    files = "metrics.json and per_caption.jsonl, or comparison.json"
    add("--output_dir", type=normal_name, help=f"where to write {files}")
    add(
        "--metrics",
        nargs="+",
        default=DEFAULT_EVALUATORS,
        choices=EVALUATORS,
        metavar="NAME",
        help=f"of {', '.join(EVALUATORS)} (default: {' '.join(DEFAULT_EVALUATORS)})",
    )
    add("--images", type=Path, help="the images' folder, or a JSON file {image id: image file}")
    add("--cache_dir", type=Path, help="where metrics keep features and downloads")
    add("--language", default="en", help="of the captions, such as de, ko or zh (ISO 639-1)")
    add("--device", default="auto", help="device of models: auto, cpu, cuda, cuda:1")
    add("--batch_size", type=int, default=64, help="batch size of models")
    for name, (kind, field) in options_of(evaluator_classes().values()).items():
        parsing = _parsing_of(get_args(kind)[0], field.default)
        add(f"--{name}", default=field.default, help=field.description, **parsing)
    arguments = parser.parse_args(argv)
    if arguments.batch_size < 1:
        parser.error("--batch_size has to be 1 or more")
    if not re.fullmatch("[a-z]{2}", arguments.language):
        parser.error(f"--language: found {arguments.language!r}; give two letters, such as zh")
    if (arguments.predictions is None) == (arguments.compare is None):
        parser.error("give one file of predictions, or --compare with two files")
    return arguments


def _parsing_of(kind: Any, default: Any) -> dict[str, Any]:
    """Return keyword arguments of `add_argument` for an option of this type."""
    if default is False:
        return {"action": "store_true"}
    if list[str] in (kind, *get_args(kind)):
        return {"nargs": "+"}
    return {"type": str if default is None else type(default)}


def main(argv=None) -> int:
    """Run the program and return its exit code, which is 2 after a one-line error for the user."""
    argv = sys.argv[1:] if argv is None else argv
    arguments = _parse_arguments(argv)
    return run_program(lambda: _evaluate(arguments, argv), "stopped: nothing was written")


def _evaluate(arguments: argparse.Namespace, argv: list[str]) -> None:
    """Score the captions. Raises UserError. argv: the command line, recorded with the scores."""
    device = str(distributed.start(arguments.device))
    files = arguments.compare or [arguments.predictions]
    references = read_references(arguments.references) if arguments.references else None
    ids = ids_by_name(local(arguments.references or files[0]))
    predictions, *second = [_read_predictions(path, references, ids) for path in files]
    if arguments.output_dir:
        require_writable(arguments.output_dir)  # fail before the captions are scored
    evaluators = _build_evaluators(arguments, files[0], predictions, device)
    command = shlex.join(["python", "-m", "captioning.evaluate", *argv])
    # Files are written before anything is printed, because stdout may be closed.
    if arguments.compare:
        both = predictions, same_images(predictions, *second)
        scores = [score(each, references, evaluators) for each in both]
        print(_compared(*scores, arguments.output_dir, command))
    else:
        scores = score(predictions, references, evaluators)
        if arguments.output_dir:
            write_scores(arguments.output_dir, scores, predictions, command)
        print(format_table(scores, len(predictions)))
    scored = {str(name) for i in predictions for name in (i, image_of(i))}
    if num_unscored := len(set(map(str, references or ())) - scored):
        log_line(
            f"warning: {num_unscored} of {len(references)} images with references have no "
            "prediction and were not scored"
        )


def _read_predictions(path, references, ids):
    """Return {image id: caption} of a file, without images that have no references.

    references: {image id: human captions}, or None. ids: {image name: image id}.
    """
    if references is None:
        return read_predictions(path, ids)
    predictions, unmatched = with_references(read_predictions(path, ids), references)
    if unmatched:
        log_line(
            f"warning: {path}: {len(unmatched)} of {len(unmatched) + len(predictions)} images with "
            f"a prediction have no references and were not scored, the first is {unmatched[0]!r}"
        )
    return predictions


def _build_evaluators(arguments, file, predictions, device):
    """Return the chosen evaluators. Warns of options that none of them uses.

    file: of the predictions.
    """
    kinds = evaluator_classes()
    chosen = options_of(kinds[name] for name in arguments.metrics)
    for name, (_, field) in options_of(kinds.values()).items():
        if name not in chosen and getattr(arguments, name) != field.default:
            users = " or ".join(each for each, kind in kinds.items() if name in kind.options)
            log_line(f"warning: --{name} has no effect without --metrics {users}")
    images, root = None, arguments.images
    if root and any(kinds[name].needs_images for name in arguments.metrics):
        images = find_images(root, local(arguments.references or file), predictions)
    if root and root.is_file():  # the JSON file names images relative to its own folder
        root = root.parent
    common = (arguments.cache_dir, device, arguments.batch_size)
    settings = Settings(images, root, *common, language=arguments.language)
    options = {name: getattr(arguments, name) for name in chosen}
    return build_evaluators(arguments.metrics, settings, **options)


def _compared(first, second, folder, command) -> str:
    """Return the table of two sets' differences. Write comparison.json to the folder, if any."""
    differences, skipped = compare(first, second), {**first.skipped, **second.skipped}
    if folder:
        content = {
            "differences": {name: asdict(difference) for name, difference in differences.items()},
            "settings": [first.settings, second.settings, {"intervals": INTERVALS}],
            "skipped": skipped,
            "command": command,
            "versions": versions(),
        }
        write_json(content, Path(folder, "comparison.json"))
    return "\n".join([format_comparison(differences), *skipped_lines(skipped)])


if __name__ == "__main__":
    sys.exit(main())
