"""Scores captions by ITM, and splits lines into kept and dropped captions by a threshold.

The ITM score is the probability, by BLIP's image-text matching model, that image and caption match.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import cache, partial
from typing import Any, BinaryIO, Callable, Optional

import torch

from captioning.bulk.reading import Batch
from captioning.bulk.shards import Line, captions_of
from captioning.data.image import load_image, transformed
from captioning.files.stores import without_secrets
from captioning.runtime.errors import UserError
from captioning.runtime.registry import load as load_entry

DIGITS = 5  # scores are rounded to this many decimals
AT_ONCE = 16  # images that are scored in one batch


def split(line: Line, threshold: float) -> tuple[Optional[Line], Optional[Line]]:
    """Split an output line of `FilteredModel` into a kept and a dropped line.

    Captions with a score above the threshold are kept. A line without captions is None.
    """
    values = line.get("itms", [line["itm"]])
    kept = [place for place, value in enumerate(values) if value > threshold]
    dropped = [place for place in range(len(values)) if place not in kept]
    return _only(line, kept), _only(line, dropped)


def _only(line: Line, places: list[int]) -> Optional[Line]:
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
def parse(text: str) -> float:
    """Return the threshold of an expression such as "itm>0.5". Raises UserError."""
    found = re.fullmatch(r"\s*itm\s*>\s*(\d*\.?\d+)\s*", text)
    if not found:
        raise UserError(f"--filter is {text!r}; write it as 'itm>0.5'")
    if float(found[1]) >= 1:
        raise UserError(f"--filter is {text!r}; its threshold has to be from 0 to below 1")
    return float(found[1])


def check(text: Optional[str], file: Optional[str]) -> Optional[str]:
    """Return the normal form of a filter expression, such as "itm>0.5"; None without a filter.

    text: the value of --filter. file: the value of --itm_model. Raises UserError if the expression
    is invalid or only one of the two flags is set.
    """
    if text is None and file is not None:
        raise UserError("--itm_model needs --filter")
    if text is None:
        return None
    if file is None:
        raise UserError(f"--filter {text} needs --itm_model, a retrieval checkpoint of BLIP")
    return f"itm>{Decimal(repr(parse(text))):f}"


class FilteredModel:
    """Wraps a captioner with the interface of `CheckpointModel`; adds ITM scores to its lines.

    text: the filter's expression. file, device, dtype: the checkpoint, the device and the precision
    of the ITM scorer. load: builds the captioner. The constructor loads the scorer before the
    captioner, and raises UserError.
    """

    def __init__(
        self,
        text: str,
        file: str,
        device: torch.device,
        dtype: torch.dtype,
        load: Callable[[], Any],
    ):
        self.scorer = load_entry("captioning.metrics.itm_model:ItmScorer")(file, device, dtype)
        self.model = load()
        self.batch_size, self.num_workers = self.model.batch_size, self.model.num_workers
        self.report = f"{self.model.report}; filter: {self.scorer.report}"
        self.read = partial(_read, self.model.read, self.scorer.preprocess)
        self.join = partial(_join, self.model.join)
        self.settings = {"filter": text, "itm_model": without_secrets(file)}

    def prefetch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the captioner's batches. `image` is a pair: images for captioner and for scorer."""
        waiting: deque[Any] = deque()

        def of_captioner() -> Iterator[Batch]:
            for batch in batches:
                image, for_scorer = batch.image or (None, None)
                waiting.append(for_scorer)
                yield batch._replace(image=image)

        for batch in self.model.prefetch(of_captioner()):
            yield batch._replace(image=(batch.image, waiting.popleft()))

    def lines(self, batch: Batch, offset: int, request: Any) -> list[Line]:
        """Return the captioner's lines, with the ITM score of each caption.

        --prefix and --suffix are removed before scoring. For the parameters, see
        `CheckpointModel.lines`.
        """
        image, for_scorer = batch.image or (None, None)
        lines = self.model.lines(batch._replace(image=image), offset, request)
        read = [place for place, entry in enumerate(batch.entries) if "error" not in entry]
        # (index in `for_scorer`, index in `lines`) of the images with captions
        scored = [(row, place) for row, place in enumerate(read) if "error" not in lines[place]]
        for start in range(0, len(scored), AT_ONCE):
            rows, places = map(list, zip(*scored[start : start + AT_ONCE]))
            captions = [
                [
                    text.removeprefix(request.prefix).removesuffix(request.suffix)
                    for text in captions_of(lines[place])
                ]
                for place in places
            ]
            found = self.scorer.scores(for_scorer[rows], captions).tolist()
            for place, values in zip(places, found):
                values = [round(value, DIGITS) for value in values]
                several = {"itms": values} if len(values) > 1 else {}
                settings = {**lines[place]["settings"], **self.settings}
                lines[place] = {**lines[place], "itm": values[0], "settings": settings, **several}
        return lines


def _read(
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
    image = read(path, data, prompt)
    if data is not None:
        data.seek(0)
    return image, transformed(transform, load_image(path, data), path)


def _join(join: Callable, items: list) -> tuple[Any, torch.Tensor]:
    images, for_scorer = zip(*items)
    return join(list(images)), torch.stack(for_scorer)
