"""Score a file of captions against human captions.

    python -m captioning.evaluate results.json --references coco_karpathy_test_gt.json
    python -m captioning.evaluate results.json --references coco_karpathy_test_gt.json \\
        --images coco/val2014 --metrics coco length diversity clipscore retrieval perplexity
    python -m captioning.evaluate --compare mle.json smile.json --references GT.json

The captions are a COCO results file of any program: a list of {image_id, caption}. Metrics that run
models divide the images among the processes of torchrun. --compare prints the differences between
the scores of two files for the same images, with confidence intervals and p-values.
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import shlex
import sys
from dataclasses import asdict
from pathlib import Path

from adapters.program import program_parser
from captioning.data.caption_files import (
    ids_by_name,
    image_of,
    read_predictions,
    read_references,
    with_references,
)
from captioning.files.cache import local
from captioning.files.writing import require_folder, write_json
from captioning.metrics.arguments import (
    add_scoring_flags,
    local_options,
    parse_scoring_arguments,
    warn_of_unused_options,
)
from captioning.metrics.bootstrap import INTERVALS
from captioning.metrics.compare_scores import compare, format_comparison, same_images
from captioning.metrics.evaluator import Settings, build_evaluators
from captioning.metrics.image_files import find_images
from captioning.metrics.registry import EVALUATORS
from captioning.metrics.score_table import format_table, skipped_lines
from captioning.metrics.scoring import score, versions, write_scores
from captioning.runtime import distributed
from captioning.runtime.program import run_program
from captioning.runtime.progress import log_line
from captioning.runtime.registry import load


def _parse_arguments(argv):
    parser = program_parser(
        "python -m captioning.evaluate",
        "Score a file of captions against human captions.",
        usage="%(prog)s PREDICTIONS --references FILE [options]; --help lists them",
    )
    add = parser.add_argument
    add("predictions", nargs="?", help="COCO results: a JSON list of {image_id, caption}")
    add("--compare", nargs=2, metavar=("A", "B"), help="two such files, instead of predictions")
    captions = "COCO ground truth, any training format, or {image id: [captions]}"
    add("--references", required=True, help=f"human captions: {captions}")
    files = "metrics.json and per_caption.jsonl, or comparison.json"
    add("--output_dir", help=f"where to write {files}")
    add_scoring_flags(parser, "the images' folder, or a JSON file {image id: image file}")
    arguments = parse_scoring_arguments(parser, argv)
    if (arguments.predictions is None) == (arguments.compare is None):
        parser.error("give one file of predictions, or --compare with two files")
    return arguments


def main(argv=None) -> int:
    """Run the program and return its exit code, which is 2 after a one-line error for the user."""
    argv = sys.argv[1:] if argv is None else argv
    arguments = _parse_arguments(argv)
    return run_program(lambda: _evaluate(arguments, argv), "stopped: nothing was written")


def _evaluate(arguments, argv):
    """Score the captions. Only rank 0 prints and writes. Raises UserError.

    argv: the command line, to be recorded with the scores.
    """
    device, is_main = str(distributed.start(arguments.device)), distributed.is_main()
    references = read_references(arguments.references)
    ids = ids_by_name(local(arguments.references))
    files = arguments.compare or [arguments.predictions]
    predictions, *second = [_read_predictions(path, references, ids) for path in files]
    if is_main and arguments.output_dir:
        require_folder(Path(arguments.output_dir))  # fail before the captions are scored
    warn_of_unused_options(arguments)
    evaluators = _build_evaluators(arguments, predictions, device)
    command = shlex.join(["python", "-m", "captioning.evaluate", *argv])
    if arguments.compare:
        both = predictions, same_images(predictions, *second)
        first_scores, second_scores = (score(each, references, evaluators) for each in both)
        if is_main:
            _show_comparison(first_scores, second_scores, arguments.output_dir, command)
            _warn_of_unscored(references, predictions)
        return
    scores = score(predictions, references, evaluators)
    if not is_main:
        return
    if arguments.output_dir:  # before anything is printed, because stdout may be closed
        write_scores(arguments.output_dir, scores, predictions, command)
    print(format_table(scores, len(predictions)))
    _warn_of_unscored(references, predictions)


def _warn_of_unscored(references, predictions):
    """Warn if images with references have no prediction. Both: {image id: captions}."""
    scored = {str(name) for i in predictions for name in (i, image_of(i))}
    num_unscored = len(set(map(str, references)) - scored)
    if num_unscored:
        log_line(
            f"warning: {num_unscored} of {len(references)} images with references have no "
            "prediction and were not scored"
        )


def _read_predictions(path, references, ids):
    """Return {image id: caption} of a file, without images that have no references.

    references: {image id: human captions}. ids: {image name: image id}.
    """
    predictions, unmatched = with_references(read_predictions(path, ids), references)
    if unmatched:
        log_line(
            f"warning: {path}: {len(unmatched)} of {len(unmatched) + len(predictions)} images with "
            f"a prediction have no references and were not scored, the first is {unmatched[0]!r}"
        )
    return predictions


def _build_evaluators(arguments, predictions, device):
    images, root = None, arguments.images
    if root and any(load(EVALUATORS[name]).needs_images for name in arguments.metrics):
        images = find_images(root, local(arguments.references), predictions)
    if root and root.is_file():  # the JSON file names images relative to its own folder
        root = root.parent
    settings = Settings(images, root, arguments.cache_dir, device, arguments.batch_size)
    return build_evaluators(arguments.metrics, settings, **local_options(arguments))


def _show_comparison(first, second, folder, command):
    differences = compare(first, second)
    skipped = {**first.skipped, **second.skipped}
    if folder:
        content = {
            "differences": {name: asdict(difference) for name, difference in differences.items()},
            "settings": [first.settings, second.settings, {"intervals": INTERVALS}],
            "skipped": skipped,
            "command": command,
            "versions": versions(),
        }
        write_json(content, Path(folder, "comparison.json"))
    print("\n".join([format_comparison(differences), *skipped_lines(skipped)]))


if __name__ == "__main__":
    sys.exit(main())
