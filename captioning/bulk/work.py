"""Captions the units of a plan in one process: reads, captions, keeps."""

import io
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, BinaryIO, Callable, NamedTuple, Optional, Union

import torch
from torch.utils.data import DataLoader, Dataset

from captioning.bulk import outputs
from captioning.bulk.inputs import Entry, entries_of
from captioning.bulk.plan import TRIES, Line, Plan
from captioning.bulk.request import Request
from captioning.files import stores, tables
from captioning.runtime import signals
from captioning.runtime.errors import UserError

KEEP_S = 10  # seconds between two writes of a unit's lines


class Batch(NamedTuple):
    """Images of one unit.

    - offset: the number of images of the unit before them
    - entries: {"image", "image_id", "prompt"} of each image, or with an "error" if it cannot be
      read
    - is_last: whether it marks the end of the unit; there are no entries then
    - image: the batched images of the entries without an "error"; None if there are none
    - for_filter: for each entry the input of the model's filter, if it has one
    - failure: why the store of the images can no longer be read
    """

    unit: int
    offset: int
    entries: list[Entry]
    is_last: bool = False
    image: Any = None
    for_filter: Any = None
    failure: Optional[str] = None


@dataclass
class Worker:
    """Captions units in this process.

    - on_images: called with a number of images that are captioned or have failed
    - left_out: the names of files in tars that were not captioned, see `tars.samples`
    """

    request: Request
    plan: Plan
    model: Any
    on_images: Callable[[int], None]
    left_out: list[str] = field(default_factory=list)

    def caption(self, units: Iterable[int], read_ahead: bool = True) -> None:
        """Caption units. read_ahead: whether images are read while others are captioned.

        Raises Stopped after a signal, and UserError if a store can no longer be read. The lines
        made until then are kept. Another error may be the death of a process that reads images: it
        counts as a try of all units that are begun, see `Plan.tries`.
        """
        begun: dict[int, str] = {}
        lines, first, kept_at = [], 0, time.monotonic()
        try:
            with ThreadPoolExecutor(1) as pool:
                batches = self._batches(units, begun)
                loader = DataLoader(
                    _Images(self.model),
                    batch_size=None,
                    sampler=_ahead(batches, pool) if read_ahead else batches,
                    collate_fn=_identity,
                    num_workers=self.model.num_workers if read_ahead else 0,
                    worker_init_fn=signals.ignore,
                    pin_memory=torch.cuda.is_available(),
                    generator=torch.Generator(),  # otherwise it draws from the global generator
                )
                for batch in self.model.prefetch(loader):
                    if batch.failure:
                        raise UserError(batch.failure)
                    answers = self.model.captions(batch)
                    new = output_lines(batch.entries, answers, self.model.origin)
                    if self.model.filter:
                        self.model.filter.add_scores(new, batch.for_filter)
                    self.on_images(len(new))
                    lines += map(self.request.with_affixes, new)
                    first = batch.offset + len(new) - len(lines)
                    if batch.is_last or time.monotonic() - kept_at > KEEP_S:
                        self._keep(batch.unit, first, lines, batch.is_last)
                        lines, kept_at = [], time.monotonic()
                    if batch.is_last:
                        stores.remove(begun.pop(batch.unit))
                    signals.raise_if_requested()
        except (signals.Stopped, UserError):
            if lines:  # they are of one unit, see `Batch.is_last`
                self._keep(batch.unit, first, lines, False)
            for address in begun.values():
                stores.remove(address)
            raise

    def _keep(self, unit: int, first: int, lines: list[Line], is_last: bool) -> None:
        if is_last and self.request.write_shards:
            outputs.write_tar(self.request, self.plan, unit, lines)
        self.plan.keep(unit, first, lines, is_last)

    def _batches(self, units: Iterable[int], begun: dict[int, str]) -> Iterator[Batch]:
        """Yield the batches of the units without images. begun: gets the units' files of `begin`.

        Where batches begin depends only on the unit and on what is kept of it.
        """
        for number in units:
            unit, tries = self.plan.unit(number), self.plan.tries(number)
            offset = kept = self.plan.kept(number)
            begun[number] = self.plan.begin(number)
            if tries < TRIES:
                entries = islice(entries_of(unit, self.left_out), kept, None)
            else:
                rest = unit["images"][kept:] if "images" in unit else [{"image": unit["tar"]}]
                reason = (
                    f"set aside: {tries} processes ended while they captioned it or images near it"
                )
                entries = ({**entry, "error": f"{entry['image']}: {reason}"} for entry in rest)
            while batch := list(islice(entries, self.model.batch_size)):
                yield Batch(number, offset, batch)
                offset += len(batch)
            yield Batch(number, offset, [], is_last=True)


def _ahead(batches: Iterator[Batch], pool: ThreadPoolExecutor) -> Iterator[Batch]:
    """Yield the batches. The next one is made in the pool's thread, because it may read a tar."""
    following = pool.submit(next, batches, None)
    while (batch := following.result()) is not None:
        following = pool.submit(next, batches, None)
        yield batch


@dataclass
class _Images(Dataset):
    """Reads the images of a batch. A file that cannot be read gives its entry an "error".

    last_read: address of the file most recently returned by a store.
    """

    model: Any
    last_read: Optional[str] = None

    def __getitem__(self, batch: Batch) -> Batch:
        images, for_filter, failure = [], [], None
        for entry in batch.entries:
            name, filter_input = entry["image"], None
            try:
                if "error" not in entry:
                    data = self._content(name, entry.pop("data", None))
                    image = self.model.read(name, data, entry.get("prompt"))
                    if self.model.filter:
                        filter_input = self.model.filter.read(name, data)
                    images.append(image)
            except UserError as error:
                entry["error"] = str(error)
                # Addresses at https are of many servers, so that the error concerns one file.
                if isinstance(error, stores.StoreError) and not name.startswith("https:"):
                    failure = str(error)
            except Exception as error:  # a broken image must not end the run
                entry["error"] = f"{type(error).__name__}: {error}"
            for_filter.append(filter_input)
        if failure and self._store_answers():
            failure = None
        image = self.model.collate(images) if images else None
        return batch._replace(image=image, for_filter=for_filter, failure=failure)

    def _content(self, name: str, data: Optional[bytes]) -> Optional[BinaryIO]:
        """Return an image file's content; None if `read` opens it. data: of an image in a tar."""
        if data is None and stores.is_store(name) and not tables.is_row(name):
            data, self.last_read = stores.read_bytes(name), name
        return None if data is None else io.BytesIO(data)

    def _store_answers(self) -> bool:
        """Return whether the file that was last read can still be read."""
        try:
            return self.last_read is not None and stores.exists(self.last_read)
        except stores.StoreError:
            return False


def output_lines(
    entries: Iterable[Entry],
    answers: Iterable[Union[list[dict[str, Any]], str]],
    origin: dict[str, Any],
) -> list[Line]:
    """Return the line of each entry: its "error", or its captions and their scores.

    - answers: of each entry without an "error": its captions, or why it has none. Captions are
      {"caption": text, name of a score: value}, the best first. With several, the line also has the
      lists of all values under plural keys, such as "captions" and "scores"
    - origin: {"checkpoint", "settings"}, which a line with captions ends with
    """
    answers, lines = iter(answers), []
    for entry in entries:
        line = {key: entry[key] for key in ("image", "image_id", "prompt") if key in entry}
        answer = entry.get("error") or next(answers)
        if isinstance(answer, str):
            lines.append({**line, "error": answer})
            continue
        for name in answer[0]:
            values = [caption[name] for caption in answer]
            line[name] = values[0]
            if len(values) > 1:
                line[f"{name}s"] = values
        lines.append({**line, **origin})
    return lines


def _identity(batch: Batch) -> Batch:
    return batch
