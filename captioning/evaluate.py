"""Score a file of captions against human ones.

    python -m captioning.evaluate results.json --references coco_karpathy_test_gt.json

The captions are a COCO results file, a list of {image_id, caption}, whatever program wrote it.
"""

import argparse
import contextlib
import json
import math
import os
import platform
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Optional, Union

from captioning.caption_files import (
    Captions,
    ImageId,
    match_ids,
    predictions_by_id,
    read_predictions,
    read_references,
)
from captioning.errors import UserError
from captioning.json_file import write_json, write_text
from captioning.metrics.bootstrap import INTERVALS
from captioning.metrics.evaluator import CaptionSet, Evaluator, Scores, Settings
from captioning.metrics.java import JavaError, java_version
from captioning.metrics.registry import DEFAULT_METRICS, EVALUATORS, build_evaluators
from captioning.score_table import format_table


def score(
    predictions: Union[Captions, list[dict]],
    references: Mapping[ImageId, Sequence[str]],
    evaluators: Optional[Iterable[Evaluator]] = None,
) -> Scores:
    """Return the scores of captions, given as {image id: caption} or a list of COCO results.

    evaluators: from `build_evaluators`, by default those of coco, length and diversity. One that
    fails is in `skipped`, and the others are kept. Only the images with a prediction are scored, as
    the COCO tools do. Raises UserError for an image that is predicted twice or has no references,
    and if there is no prediction.
    """
    if isinstance(predictions, Mapping):
        predictions = [{"image_id": i, "caption": text} for i, text in predictions.items()]
    predictions = predictions_by_id(predictions)
    captions = CaptionSet(predictions, match_ids(predictions, references))
    scores = Scores({}, {image_id: {} for image_id in predictions}, {}, {})
    for evaluator in build_evaluators() if evaluators is None else evaluators:
        try:
            _add(evaluator.evaluate(captions), scores)
        # The captions may have cost hours: whatever goes wrong in one evaluator, keep the others.
        except Exception as error:
            reason = str(error) if isinstance(error, UserError) else repr(error)
            scores.skipped.update(dict.fromkeys(evaluator.names, reason))
    return scores


def _add(result, scores):
    scores.settings.update(result.settings)
    scores.skipped.update(result.skipped)
    for name, estimate in result.metrics.items():
        if math.isfinite(estimate.value):
            scores.metrics[name] = estimate
        else:
            scores.skipped[name] = "these captions have nothing that it could be a share of"
    for name, values in result.per_image.items():
        for of_image, value in zip(scores.per_image.values(), values):
            of_image[name] = value


def write_scores(
    folder: Union[str, os.PathLike], scores: Scores, predictions: Captions, command: str
) -> None:
    """Write `metrics.json` and, one image a line, `per_caption.jsonl` into a folder.

    predictions has the ids of `scores.per_image`; command is the one to be recorded. A file is
    written whole or not at all. Raises UserError if the folder cannot be written to.
    """
    summary = {
        "metrics": {name: asdict(estimate) for name, estimate in scores.metrics.items()},
        "settings": {**scores.settings, "intervals": INTERVALS},
        "skipped": scores.skipped,
        "command": command,
        "versions": _versions(),
    }
    lines = [
        json.dumps({"image_id": i, "caption": predictions[i], **values})
        for i, values in scores.per_image.items()
    ]
    write_text("".join(line + "\n" for line in lines), Path(folder, "per_caption.jsonl"))
    write_json(summary, Path(folder, "metrics.json"))


def _versions():
    versions = {"python": platform.python_version(), "java": None, "pycocoevalcap": None}
    with contextlib.suppress(JavaError):
        versions["java"] = str(java_version())
    with contextlib.suppress(metadata.PackageNotFoundError):
        versions["pycocoevalcap"] = metadata.version("pycocoevalcap")
    return versions


def _arguments(argv):
    parser = argparse.ArgumentParser(
        prog="python -m captioning.evaluate",
        description="Score a file of captions against human ones.",
    )
    parser.add_argument("predictions", help="COCO results: a JSON list of {image_id, caption}")
    parser.add_argument(
        "--references",
        required=True,
        help="human captions: COCO ground truth, an annotation file or {image id: [captions]}",
    )
    parser.add_argument("--output_dir", help="where to write metrics.json and per_caption.jsonl")
    parser.add_argument(
        "--metrics",
        nargs="+",
        choices=EVALUATORS,
        default=DEFAULT_METRICS,
        metavar="NAME",
        help=f"of {', '.join(EVALUATORS)} (default: {' '.join(DEFAULT_METRICS)})",
    )
    parser.add_argument("--spice", action="store_true", help="compute SPICE too, which is slow")
    parser.add_argument("--facts_file", type=Path, help="what is in each image, for facts")
    return parser.parse_args(argv)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program on its arguments (those of the command line); return its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    arguments = _arguments(argv)
    try:
        settings = Settings(spice=arguments.spice, facts_file=arguments.facts_file)
        evaluators = build_evaluators(arguments.metrics, settings)
        predictions = read_predictions(arguments.predictions)
        references = read_references(arguments.references)
        scores = score(predictions, references, evaluators)
        print(format_table(scores))
        left_out = len(references) - len(predictions)
        if left_out:
            print(
                f"warning: {left_out} of {len(references)} images with references have no "
                "prediction and were not scored",
                file=sys.stderr,
            )
        if arguments.output_dir:
            command = shlex.join(["python", "-m", "captioning.evaluate", *argv])
            write_scores(arguments.output_dir, scores, predictions, command)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
