"""Scores captions with several evaluators, and writes the scores to a folder."""

import contextlib
import json
import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Optional, Union

from captioning.data.caption_files import Captions, ImageId, match_ids, predictions_by_id
from captioning.files.writing import write_json, write_text
from captioning.metrics.base import CaptionSet, Evaluator, Scores, build_evaluators
from captioning.metrics.intervals import INTERVALS
from captioning.metrics.java import JavaError, java_version
from captioning.runtime.distributed import is_main
from captioning.runtime.errors import UserError


def score(
    predictions: Union[Captions, list[dict]],
    references: Mapping[ImageId, Sequence[str]],
    evaluators: Optional[Iterable[Evaluator]] = None,
) -> Scores:
    """Return the scores of captions, given as {image id: caption} or a list of COCO results.

    evaluators: from `build_evaluators`; by default coco, length and diversity. If an evaluator
    fails, its metrics are listed in `skipped`, and the scores of other evaluators are kept. All
    ranks call this. Rank 0 returns all scores; the other ranks only take part in evaluators that
    divide their work.

    Only images with a prediction are scored. Raises UserError for an image with two different
    predictions or without references, and if there are no predictions.
    """
    if isinstance(predictions, Mapping):
        predictions = [{"image_id": i, "caption": text} for i, text in predictions.items()]
    predictions = predictions_by_id(predictions)
    captions = CaptionSet(predictions, match_ids(predictions, references))
    scores = Scores({})
    for evaluator in build_evaluators() if evaluators is None else evaluators:
        if not (is_main() or getattr(evaluator, "on_every_rank", False)):
            continue
        try:
            found = evaluator.evaluate(captions)
        # Captioning may have taken hours: an error in one evaluator must not lose other scores.
        except Exception as error:
            reason = str(error) if isinstance(error, UserError) else repr(error)
            found = Scores({}, skipped=dict.fromkeys(evaluator.metric_names, reason))
        scores.update(found)
    for name in [name for name, each in scores.metrics.items() if not math.isfinite(each.value)]:
        del scores.metrics[name]
        scores.skipped[name] = "undefined for these captions"
    return scores


def write_scores(
    folder: Union[str, os.PathLike], scores: Scores, predictions: Captions, command: str
) -> None:
    """Write `metrics.json` and `per_caption.jsonl`, with one caption per line, to a folder.

    predictions: the scored captions, in the order of `scores`. command: the command line, recorded
    in metrics.json. Each file is written atomically. Raises UserError if the folder is not
    writable.
    """
    summary = {
        "metrics": {name: asdict(estimate) for name, estimate in scores.metrics.items()},
        "settings": {**scores.settings, "intervals": INTERVALS},
        "skipped": scores.skipped,
        "command": command,
        "versions": versions(),
    }
    columns = {**scores.per_caption, **scores.details}
    lines = [
        json.dumps({"image_id": i, "caption": text, **{n: c[row] for n, c in columns.items()}})
        for row, (i, text) in enumerate(predictions.items())
    ]
    write_text("".join(line + "\n" for line in lines), Path(folder, "per_caption.jsonl"))
    write_json(summary, Path(folder, "metrics.json"))


def versions() -> dict[str, Optional[str]]:
    """Return {name: version} of the software that affects scores; None if it is not installed."""
    java = None
    with contextlib.suppress(JavaError):
        java = str(java_version())
    names = "pycocoevalcap numpy torch torchvision pillow transformers tokenizers textblob nltk"
    found = library_versions(*names.split())
    return {"python": platform.python_version(), "java": java, **found}


def library_versions(*names: str) -> dict[str, Optional[str]]:
    """Return {name: version} of libraries; None for a library that is not installed."""
    versions: dict[str, Optional[str]] = dict.fromkeys(names)
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions
