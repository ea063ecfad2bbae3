"""Scores captions by ITM, and splits lines into kept and dropped captions by a threshold.

The ITM score is the probability, by BLIP's image-text matching model, that image and caption match.
"""

import re
from functools import cache
from typing import Any, BinaryIO, Callable, NamedTuple, Optional

import torch

from captioning.bulk.plan import captions_of
from captioning.data.image import apply_transform, load_image
from captioning.files.stores import without_secrets
from captioning.runtime.errors import UserError
from captioning.runtime.registry import load as load_entry

DIGITS = 5  # scores are rounded to this many decimals
AT_ONCE = 16  # images that are scored in one batch


class SplitLine(NamedTuple):
    """An output line for the kept captions, and one for the dropped; None without captions."""

    kept: Optional[dict[str, Any]]
    dropped: Optional[dict[str, Any]] = None


def split_by_score(line: dict[str, Any], threshold: float) -> SplitLine:
    """Split a line with ITM scores: keep captions with scores above the threshold."""
    scores = line.get("itms", [line["itm"]])
    kept = [index for index, score in enumerate(scores) if score > threshold]
    dropped = [index for index in range(len(scores)) if index not in kept]
    return SplitLine(_with_captions_at(kept, line), _with_captions_at(dropped, line))


def _with_captions_at(indices: list[int], line: dict[str, Any]) -> Optional[dict[str, Any]]:
    """Return the line with only the captions at these indices; None if there are none.

    Each list under a plural key, such as "itms", keeps the same indices.
    """
    if not indices:
        return None
    filtered = dict(line)
    for name in [name for name in line if isinstance(line.get(f"{name}s"), list)]:
        values = [filtered[f"{name}s"][index] for index in indices]
        filtered[name] = values[0]
        filtered[f"{name}s"] = values
        if len(values) == 1:
            del filtered[f"{name}s"]
    return filtered


@cache  # called for each line
def threshold_of(expression: str) -> float:
    """Return the threshold of an expression such as "itm>0.5". Raises UserError."""
    match = re.fullmatch(r"\s*itm\s*>\s*(\d*\.?\d+)\s*", expression)
    if not match or float(match[1]) >= 1:
        raise UserError(f"--filter is {expression!r}; write it as 'itm>0.5', from 0 to below 1")
    return float(match[1])


class ItmFilter:
    """Adds the ITM score of each caption to lines. The constructor raises UserError.

    - expression: the filter's, such as "itm>0.5"; recorded with the captions
    - itm_model: the scorer's checkpoint
    - device: the scorer's
    - dtype: the precision of the scorer
    """

    def __init__(self, expression: str, itm_model: str, device: torch.device, dtype: torch.dtype):
        self.scorer = load_entry("captioning.metrics.itm:ItmScorer")(itm_model, device, dtype)
        self.settings = {"filter": expression, "itm_model": without_secrets(itm_model)}

    def read(self, name: str, data: Optional[BinaryIO]) -> torch.Tensor:
        """Return the scorer's input for an image. data: the file's content; None for a file."""
        if data is not None:
            data.seek(0)
        return apply_transform(self.scorer.preprocess, load_image(name, data), name)

    def add_scores(self, pairs: list[tuple[dict[str, Any], torch.Tensor]]) -> None:
        """Add "itm" to lines with captions, with several captions also "itms".

        pairs: each line with the scorer's input for its image.
        """
        for start in range(0, len(pairs), AT_ONCE):
            lines, images = zip(*pairs[start : start + AT_ONCE])
            scores = self.scorer.scores(torch.stack(images), list(map(captions_of, lines)))
            for line, line_scores in zip(lines, scores.tolist()):
                rounded = [round(score, DIGITS) for score in line_scores]
                line.update(itm=rounded[0], settings={**line["settings"], **self.settings})
                if len(rounded) > 1:
                    line["itms"] = rounded


def load_filtered(load: Callable[[], Any], *arguments: Any) -> Any:
    """Return the captioner that `load` returns, with an `ItmFilter` as its attribute `filter`."""
    itm_filter = ItmFilter(*arguments)
    model = load()
    model.filter = itm_filter
    model.report = f"{model.report}; filter: {itm_filter.scorer.report}"
    return model
