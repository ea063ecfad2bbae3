"""Scores captions by ITM, and splits lines into kept and dropped captions by a threshold.

The ITM score is the probability, by BLIP's image-text matching model, that image and caption match.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import cache, partial
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, NamedTuple, Optional

import torch

if TYPE_CHECKING:
    from captioning.bulk.work import Batch
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
    """Split an output line of `FilteredModel`: keep captions with scores above the threshold."""
    scores = line.get("itms", [line["itm"]])
    kept = [place for place, score in enumerate(scores) if score > threshold]
    dropped = [place for place in range(len(scores)) if place not in kept]
    return SplitLine(_with_captions_at(kept, line), _with_captions_at(dropped, line))


def _with_captions_at(places: list[int], line: dict[str, Any]) -> Optional[dict[str, Any]]:
    """Return the line with only the captions at the indices `places`; None if there are none.

    Each list under a plural key, such as "itms", keeps the same indices.
    """
    if not places:
        return None
    found = dict(line)
    for singular in [name for name in line if isinstance(line.get(f"{name}s"), list)]:
        values = found.pop(f"{singular}s")
        found[singular] = values[places[0]]
        if len(places) > 1:
            found[f"{singular}s"] = [values[place] for place in places]
    return found


@cache
def threshold_of(expression: str) -> float:
    """Return the threshold of an expression such as "itm>0.5". Raises UserError."""
    found = re.fullmatch(r"\s*itm\s*>\s*(\d*\.?\d+)\s*", expression)
    if not found:
        raise UserError(f"--filter is {expression!r}; write it as 'itm>0.5'")
    if float(found[1]) >= 1:
        raise UserError(f"--filter is {expression!r}; its threshold has to be from 0 to below 1")
    return float(found[1])


def checked_filter(expression: Optional[str], itm_model: Optional[str]) -> Optional[str]:
    """Return the normal form of a filter expression, such as "itm>0.5"; None without a filter.

    expression, itm_model: the values of --filter and --itm_model. Raises UserError if the
    expression is invalid or only one of the two flags is set.
    """
    if expression is None:
        if itm_model is not None:
            raise UserError("--itm_model needs --filter")
        return None
    if itm_model is None:
        raise UserError(f"--filter {expression} needs --itm_model, a retrieval checkpoint of BLIP")
    return f"itm>{Decimal(repr(threshold_of(expression))):f}"


class FilteredModel:
    """Wraps a captioner with the interface of `CheckpointModel`; adds ITM scores to its lines.

    expression: of the filter. itm_model, device, dtype: the checkpoint, the device and the
    precision of the ITM scorer. load: builds the captioner. The constructor loads the scorer before
    the captioner, and raises UserError.
    """

    def __init__(
        self,
        expression: str,
        itm_model: str,
        device: torch.device,
        dtype: torch.dtype,
        load: Callable[[], Any],
    ):
        self.scorer = load_entry("captioning.metrics.itm_model:ItmScorer")(itm_model, device, dtype)
        self.model = load()
        self.batch_size, self.num_workers = self.model.batch_size, self.model.num_workers
        self.report = f"{self.model.report}; filter: {self.scorer.report}"
        self.read = partial(_read_twice, self.model.read, self.scorer.preprocess)
        self.collate = partial(_collate_pairs, self.model.collate)
        self.settings = {"filter": expression, "itm_model": without_secrets(itm_model)}

    def prefetch(self, batches: Iterable["Batch"]) -> Iterator["Batch"]:
        """Yield the captioner's batches. `image` is a pair: images for captioner and for scorer."""
        waiting = deque()

        def of_captioner() -> Iterator["Batch"]:
            for batch in batches:
                image, for_scorer = batch.image or (None, None)
                waiting.append(for_scorer)
                yield batch._replace(image=image)

        for batch in self.model.prefetch(of_captioner()):
            yield batch._replace(image=(batch.image, waiting.popleft()))

    def lines(self, batch: "Batch") -> list[dict[str, Any]]:
        """Return the captioner's lines, with the ITM score of each caption."""
        image, for_scorer = batch.image or (None, None)
        lines = self.model.lines(batch._replace(image=image))
        # `for_scorer` has a row for each image that was read; not each of them has captions.
        of_read = [line for line, entry in zip(lines, batch.entries) if "error" not in entry]
        scored = [(row, line) for row, line in enumerate(of_read) if "error" not in line]
        for start in range(0, len(scored), AT_ONCE):
            rows, scored_lines = map(list, zip(*scored[start : start + AT_ONCE]))
            captions = [line.get("captions", [line["caption"]]) for line in scored_lines]
            scores = self.scorer.scores(for_scorer[rows], captions).tolist()
            for line, of_line in zip(scored_lines, scores):
                self._add_scores(line, of_line)
        return lines

    def _add_scores(self, line: dict[str, Any], scores: list[float]) -> None:
        rounded = [round(score, DIGITS) for score in scores]
        line["itm"] = rounded[0]
        line["settings"] = {**line["settings"], **self.settings}
        if len(rounded) > 1:
            line["itms"] = rounded


def _read_twice(
    read: Callable,
    transform: Callable,
    path: str,
    data: Optional[BinaryIO] = None,
    prompt: Optional[str] = None,
) -> tuple[Any, torch.Tensor]:
    """Return the inputs for captioner and scorer of an image file. Raises UserError.

    read: the captioner's function of this name. transform: the scorer's preprocessing.
    path, data, prompt: the arguments of `read`.
    """
    for_captioner = read(path, data, prompt)
    if data is not None:
        data.seek(0)
    return for_captioner, apply_transform(transform, load_image(path, data), path)


def _collate_pairs(collate: Callable, pairs: list) -> tuple[Any, torch.Tensor]:
    """Return the batches for captioner and scorer. collate: makes the captioner's batch."""
    images, for_scorer = zip(*pairs)
    return collate(list(images)), torch.stack(for_scorer)
