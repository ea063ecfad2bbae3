"""Score a file of captions against human ones.

    python -m captioning.evaluate results.json --references coco_karpathy_test_gt.json

The captions are a COCO results file, a list of {image_id, caption}, whatever program wrote it.
"""

import argparse
import contextlib
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
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
from captioning.metrics.coco import Scores, coco_scores
from captioning.metrics.java import JavaError, java_version

# The order, and the names, in which captioning papers print them.
COLUMNS = {
    "Bleu_1": "BLEU-1",
    "Bleu_2": "BLEU-2",
    "Bleu_3": "BLEU-3",
    "Bleu_4": "BLEU-4",
    "METEOR": "METEOR",
    "ROUGE_L": "ROUGE-L",
    "CIDEr": "CIDEr",
    "SPICE": "SPICE",
}


def score(
    predictions: Union[Captions, list[dict]],
    references: Mapping[ImageId, Sequence[str]],
    spice: bool = False,
) -> Scores:
    """Return the scores of captions, given as {image id: caption} or a list of COCO results.

    Only the images with a prediction are scored, as the COCO tools do. Raises UserError for an
    image that is predicted twice or has no references, and if there is no prediction.
    """
    if isinstance(predictions, Mapping):
        predictions = [{"image_id": i, "caption": text} for i, text in predictions.items()]
    predictions = predictions_by_id(predictions)
    return coco_scores(predictions, match_ids(predictions, references), spice)


def format_table(scores: Scores) -> str:
    """Return the scores as a table of two rows, and under it what there is to know about them."""
    names = [name for name in COLUMNS if name in scores.metrics or name in scores.skipped]
    cells = [f"{scores.metrics[n]:.3f}" if n in scores.metrics else "-" for n in names]
    widths = [max(len(COLUMNS[n]), len(cell)) for n, cell in zip(names, cells)]
    rows = [
        "  ".join(COLUMNS[n].rjust(width) for n, width in zip(names, widths)),
        "  ".join(cell.rjust(width) for cell, width in zip(cells, widths)),
        f"{len(scores.per_image)} captions, tokenizer: {scores.tokenizer}",
    ]
    rows += [f"{COLUMNS[name]} skipped: {reason}" for name, reason in scores.skipped.items()]
    return "\n".join(rows)


def write_scores(
    folder: Union[str, os.PathLike], scores: Scores, predictions: Captions, command: str
) -> None:
    """Write `metrics.json` and, one image a line, `per_caption.jsonl` into a folder.

    predictions has the ids of `scores.per_image`; command is the one to be recorded. A file is
    written whole or not at all. Raises UserError if the folder cannot be written to.
    """
    summary = {
        "metrics": {
            name: {"value": value, "n": len(scores.per_image)}
            for name, value in scores.metrics.items()
        },
        "tokenizer": scores.tokenizer,
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
    parser.add_argument("--spice", action="store_true", help="compute SPICE too, which is slow")
    return parser.parse_args(argv)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program on its arguments (those of the command line); return its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    arguments = _arguments(argv)
    try:
        predictions = read_predictions(arguments.predictions)
        references = read_references(arguments.references)
        scores = score(predictions, references, arguments.spice)
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
