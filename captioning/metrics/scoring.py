"""Scores captions with several evaluators; writes, shows and compares the scores."""

import contextlib
import json
import math
import os
import platform
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Optional, Union

import numpy as np

from captioning.data.caption_files import Captions, ImageId, entries_of, of_images
from captioning.files.writing import write_json, write_text
from captioning.metrics.base import (
    CaptionSet,
    Evaluator,
    Scores,
    all_metrics,
    build_evaluators,
    metric_of,
)
from captioning.metrics.intervals import INTERVALS, RESAMPLES, mean_estimate, resampled_sums
from captioning.metrics.java import JavaError, java_version
from captioning.runtime import signals, table
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line

FEW_IMAGES = 100  # with fewer, there are remarks
# {metric: the metrics that come with it, and depend on the number of images}
SIZE_DEPENDENT = {"lex_div": "diversity", "R@1": "R@k", "scene_R@1": "scene R@k"}


def score(
    predictions: Captions,
    references: Optional[Mapping[ImageId, Sequence[str]]],
    evaluators: Optional[Iterable[Evaluator]] = None,
) -> Scores:
    """Return the scores of captions.

    - predictions: {image id: caption}
    - references: None skips the metrics that need them
    - evaluators: from `build_evaluators`; by default coco, length and diversity. If one fails, its
      metrics are listed in `skipped`, and the scores of others are kept

    Only images with a prediction are scored. Raises UserError for an image without references;
    Stopped if requested.
    """
    evaluators = build_evaluators() if evaluators is None else list(evaluators)
    language = next((each.settings.language for each in evaluators), "en")
    if references is None:  # the captions stand in for them
        groups = {image_id: [text] for image_id, text in predictions.items()}
    else:
        groups = entries_of(predictions, references, "references")
    captions = CaptionSet(predictions, groups, language=language)
    warn_of_one_for_most(captions.texts)
    scores = Scores(settings={} if language == "en" else {"language": language})
    for evaluator in evaluators:
        signals.raise_if_requested()
        skipped, evaluated = evaluator.skipped(references is not None), Scores()
        if len(skipped) < len(evaluator.metrics):
            evaluated = Scores.attempt(evaluator.metric_names, evaluator.evaluate, captions)
        for name in skipped:
            evaluated.metrics.pop(name, None)
            evaluated.per_caption.pop(name, None)
        evaluated.skipped.update(skipped)
        scores.update(evaluated)
    signals.raise_if_requested()
    for name in [name for name, each in scores.metrics.items() if not math.isfinite(each.value)]:
        del scores.metrics[name]
        scores.skipped[name] = "undefined for these captions"
    return scores


def write_scores(
    folder: Union[str, os.PathLike], scores: Scores, predictions: Captions, command: str
) -> None:
    """Write `metrics.json` and `per_caption.jsonl`, with one caption per line, to a folder.

    - predictions: the scored captions, in the order of `scores`
    - command: the command line, recorded in metrics.json

    Each file is written atomically. Raises UserError if the folder is not writable.
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
    libraries = library_versions(*names.split())
    return {"python": platform.python_version(), "java": java, **libraries}


def library_versions(*names: str) -> dict[str, Optional[str]]:
    """Return {name: version} of libraries; None for a library that is not installed."""
    versions: dict[str, Optional[str]] = dict.fromkeys(names)
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def format_table(scores: Scores, captions: int) -> str:
    """Return a line per metric, then settings, skipped metrics and remarks.

    captions: the number of scored captions. Half the width of a score's interval is shown after the
    score. A skipped metric has "-" as its score.
    """
    rows = []
    for name, metric in all_metrics().items():
        if name in scores.metrics:
            each, form = scores.metrics[name], f"{{:.{metric.decimals}f}}".format
            spread = "" if each.low is None else "±" + form((each.high - each.low) / 2)
            rows.append((metric.title, form(each.value), spread))
        elif name in scores.skipped:
            rows.append((metric.title, "-", ""))
    lines = [table.format_table(rows)] if rows else []
    if any(spread for *_, spread in rows):
        lines.append("±: half of the 95 % interval over images")
    # Counts of 0, such as 0 truncated captions, and texts of several lines are not shown. They are
    # in metrics.json.
    settings = [
        f"{name}: {value}"
        for name, value in scores.settings.items()
        if value != 0 and "\n" not in str(value)
    ]
    lines.append(", ".join([f"{captions} captions", *settings]))
    lines += remarks(scores.metrics, captions, "cider_df" in scores.settings)
    return "\n".join([*lines, *skipped_lines(scores.skipped)])


def remarks(metrics: Collection[str], images: int, has_corpus: bool) -> Iterator[str]:
    """Yield lines about metrics that mislead with few images.

    has_corpus: whether CIDEr has the option cider_df.
    """
    if images >= FEW_IMAGES:
        return
    if "CIDEr" in metrics and not has_corpus:
        yield (
            f"CIDEr weights words by how rare they are in the references of these {images} "
            "captions, too few for comparisons: set cider_df"
        )
    if names := [title for name, title in SIZE_DEPENDENT.items() if name in metrics]:
        yield f"By {' and '.join(names)}, {images} images compare only with sets of as many"


def warn_of_one_for_most(captions: Sequence[str]) -> None:
    """Log a line if more than half of several captions are the same."""
    for caption, count in Counter(captions).most_common(1):
        if 2 * count > len(captions) and count > 2:
            log_line(
                f"warning: {count} of {len(captions)} captions are the same, {caption!r}: the "
                "captioner makes little use of the images, unless they are alike"
            )


def skipped_lines(skipped: Mapping[str, str]) -> list[str]:
    """Return a line for each reason, with the metrics concerned. skipped: {metric: reason}."""
    titles = {}
    for name, metric in all_metrics().items():
        if name in skipped:
            titles.setdefault(skipped[name], []).append(metric.title)
    return [f"{', '.join(each)} skipped: {reason}" for reason, each in titles.items()]


@dataclass(frozen=True)
class Difference:
    """The means of a metric in two sets of captions of n images, and their difference.

    - difference: second - first
    - low, high: the 95 % interval of the difference
    - p: two-sided p-value for the hypothesis that the mean difference is 0
    - n: the number of images that have both values

    low, high and p are None for a single image, and for a metric without values per caption: then
    the scores of the two sets are compared.
    """

    first: float
    second: float
    difference: float
    low: Optional[float] = None
    high: Optional[float] = None
    p: Optional[float] = None
    n: int = 0


def same_images(first: Captions, second: Captions) -> Captions:
    """Return the second captions with the ids and the order of the first captions.

    Raises UserError for an image that is missing in one of the two.
    """
    if unmatched := set(map(str, first)) ^ set(map(str, second)):
        raise UserError(
            f"image_id {min(unmatched)!r} has a caption in only one of the two files: compare "
            "captions of the same images"
        )
    return of_images(first, second)


def compare(first: Scores, second: Scores) -> dict[str, Difference]:
    """Return {metric: difference} for the metrics that both scores have.

    Both scores have to be of the same images in the same order. If a metric has values per caption,
    the means of these values are compared, even if the metric's score of a set is no mean, as for
    BLEU. On the same images, most of the noise is common to both scores and cancels in the
    difference. Therefore the bootstrap resamples the difference per image (Koehn 2004, "Statistical
    significance tests for machine translation evaluation"; Efron & Tibshirani 1993, chapter 16).
    """
    differences = {}
    for name in dict.fromkeys([*all_metrics(), *first.per_caption]):
        if name in first.per_caption and name in second.per_caption:
            rows = zip(first.per_caption[name], second.per_caption[name])
            if pairs := [pair for pair in rows if None not in pair]:
                a, b = np.array(pairs, dtype=float).T  # (n,)
                mean = mean_estimate(b - a)
                p = p_value(b - a) if len(pairs) > 1 else None
                scores = (float(a.mean()), float(b.mean()), mean.value)
                differences[name] = Difference(*scores, mean.low, mean.high, p, len(pairs))
        elif name in first.metrics and name in second.metrics:
            a, b = first.metrics[name].value, second.metrics[name].value
            differences[name] = Difference(a, b, b - a, n=first.metrics[name].n)
    return differences


def p_value(differences: np.ndarray) -> float:
    """Return the two-sided bootstrap p-value of the mean difference. differences: (n,).

    The p-value is the share of resamples of the centred differences whose mean is at least as far
    from 0 as the observed mean. The sample itself counts as a resample, so that p is never 0
    (Davison & Hinkley 1997, section 4.2.3).
    """
    observed = abs(differences.mean())
    centred = differences - differences.mean()
    resampled = abs(resampled_sums(centred) / len(centred))
    # The tolerance allows for rounding errors.
    return float((1 + (resampled >= observed - 1e-12 * (1 + observed)).sum()) / (1 + RESAMPLES))


def format_comparison(differences: Mapping[str, Difference]) -> str:
    """Return one line per metric: both means, the difference, its interval and p."""
    rows = [("", "first", "second", "difference", "95 % interval", "p")]
    for name, each in differences.items():
        metric = metric_of(name)
        form = f"{{:.{metric.decimals}f}}".format
        interval = "" if each.p is None else f"{form(each.low)} to {form(each.high)}"
        p = "" if each.p is None else f"{each.p:.3f}"
        cells = map(form, (each.first, each.second, each.difference))
        rows.append((metric.title, *cells, interval, p))
    note = (
        "means over captions with a value in both sets; p: paired bootstrap over images, two-sided"
    )
    return f"{table.format_table(rows)}\n{note}"
