"""Scores captions by ITM, and splits lines into kept and dropped captions by a threshold.

The ITM score is the probability, by BLIP's image-text matching model, that image and caption match.
"""

import re
from itertools import compress
from typing import Any, BinaryIO, Callable, Optional

import torch

from captioning.bulk.plan import Line, captions_of
from captioning.data.image import apply_transform, load_image
from captioning.files.stores import without_secrets
from captioning.metrics.itm import ItmScorer
from captioning.runtime.errors import UserError

DIGITS = 5  # scores are rounded to this many decimals
AT_ONCE = 16  # images that are scored in one batch


def normal_filter(expression: str) -> str:
    """Return an expression such as " itm > .50" in its one form, "itm>0.5". Raises UserError."""
    match = re.fullmatch(r"\s*itm\s*>\s*(0?\.\d+|0)\s*", expression)
    if not match:
        raise UserError(f"--filter is {expression!r}; write it as 'itm>0.5', from 0 to below 1")
    return f"itm>{float(match[1]):.12g}"


def split(line: Line, expression: Optional[str]) -> tuple[Optional[Line], Optional[Line]]:
    """Return a line with the captions that the filter keeps, and one with those that it drops.

    Each is None without captions; both are None for a line with an error. expression: from
    `normal_filter`, or None to keep all.
    """
    if "error" in line:
        return None, None
    if expression is None:
        return line, None
    threshold = float(expression.partition(">")[2])
    is_kept = [score > threshold for score in line.get("itms", [line["itm"]])]
    return _selected(line, is_kept), _selected(line, [not kept for kept in is_kept])


def _selected(line: Line, is_wanted: list[bool]) -> Optional[Line]:
    """Return the line with only the wanted captions and their values; None if there are none."""
    if not any(is_wanted):
        return None
    selected = dict(line)
    for name in line:
        if isinstance(line.get(f"{name}s"), list):
            selected[name], *others = values = list(compress(line[f"{name}s"], is_wanted))
            selected[f"{name}s"] = values
            if not others:
                del selected[f"{name}s"]
    return selected


class ItmFilter:
    """Adds the ITM score of each caption to lines. The constructor raises UserError.

    - expression: the filter's, such as "itm>0.5"; recorded with the captions
    - itm_model: the scorer's checkpoint
    - device: the scorer's
    - dtype: the precision of the scorer
    """

    def __init__(self, expression: str, itm_model: str, device: torch.device, dtype: torch.dtype):
        self.scorer = ItmScorer(itm_model, device, dtype)
        self.settings = {"filter": expression, "itm_model": without_secrets(itm_model)}

    def read(self, name: str, data: Optional[BinaryIO]) -> torch.Tensor:
        """Return the scorer's input for an image. data: the file's content; None for a file."""
        return apply_transform(self.scorer.preprocess, load_image(name, data), name)

    def add_scores(self, lines: list[Line], images: list[Optional[torch.Tensor]]) -> None:
        """Add "itm" to lines with captions, with several captions also "itms".

        images: for each line the scorer's input for its image, None if it cannot be read.
        """
        pairs = [pair for pair in zip(lines, images) if "error" not in pair[0]]
        for start in range(0, len(pairs), AT_ONCE):
            captioned, inputs = zip(*pairs[start : start + AT_ONCE])
            scores = self.scorer.scores(torch.stack(inputs), list(map(captions_of, captioned)))
            for line, line_scores in zip(captioned, scores.tolist()):
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
