"""Captions the units of a plan in one process: claims, reads, captions, keeps."""

import io
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, BinaryIO, Callable, NamedTuple, Optional

import torch
from torch.utils.data import DataLoader, Dataset

from captioning.bulk import outputs
from captioning.bulk.inputs import entries_of
from captioning.bulk.plan import TRIES, Plan
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
    - for_filter: the inputs of the model's filter for these images
    - failure: why the store of the images can no longer be read; there are no entries then
    """

    unit: int
    offset: int
    entries: list[dict[str, Any]]
    is_last: bool = False
    image: Any = None
    for_filter: Any = None
    failure: Optional[str] = None


@dataclass
class Worker:
    """Captions units in this process.

    - on_images: called with a number of images that are captioned or have failed
    - done: the names of the files of units that are done
    - left_out: the names of files in tars that were not captioned, see `tars.samples`
    """

    request: Request
    plan: Plan
    model: Any
    on_images: Callable[[int], None]
    done: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def caption(self, units: Iterable[int], read_ahead: bool = True) -> None:
        """Caption units. read_ahead: whether images are read while others are captioned.

        Raises Stopped after a signal, and UserError if a store can no longer be read. The lines
        made until then are kept.
        """
        begun: dict[int, str] = {}
        try:
            with ThreadPoolExecutor(1) as pool:
                batches = self._batches(units, begun)
                self._caption(_ahead(batches, pool) if read_ahead else batches, begun, read_ahead)
        finally:  # a process that is killed does not reach this, see `Plan.begin`
            for address in begun.values():
                stores.remove(address)

    def _caption(self, batches: Iterable[Batch], begun: dict[int, str], read_ahead: bool) -> None:
        loader = DataLoader(
            _Images(self.model),
            batch_size=None,
            sampler=batches,
            collate_fn=_identity,
            num_workers=self.model.num_workers if read_ahead else 0,
            worker_init_fn=signals.ignore,
            pin_memory=torch.cuda.is_available(),
            generator=torch.Generator(),  # otherwise DataLoader draws from the global generator
        )
        lines, kept_at = [], time.monotonic()
        try:
            for batch in self.model.prefetch(loader):
                if batch.failure:
                    raise stores.StoreError(batch.failure)
                new = self._lines(batch)
                self.on_images(len(new))
                lines += map(self.request.with_affixes, new)
                first = batch.offset + len(new) - len(lines)
                if batch.is_last or time.monotonic() - kept_at > KEEP_S:
                    self._keep(batch.unit, first, lines, batch.is_last)
                    lines, kept_at = [], time.monotonic()
                if batch.is_last:
                    stores.remove(begun.pop(batch.unit))
                signals.raise_if_requested()
        except (signals.Stopped, UserError) as stop:
            if lines:  # they are of one unit, see `Batch.is_last`
                self._keep(batch.unit, first, lines, False)
            if isinstance(stop, stores.StoreError):
                raise UserError(f"{stop}; nothing is lost: run the same command again") from None
            raise

    def _lines(self, batch: Batch) -> list[dict[str, Any]]:
        lines = self.model.lines(batch)
        if self.model.filter:
            read = [line for line, entry in zip(lines, batch.entries) if "error" not in entry]
            pairs = zip(read, batch.for_filter or ())
            self.model.filter.add_scores([pair for pair in pairs if "error" not in pair[0]])
        return lines

    def _keep(self, unit: int, first: int, lines: list[dict[str, Any]], is_last: bool) -> None:
        if is_last and self.request.write_shards:
            outputs.write_tar(self.request, self.plan, unit, lines)
        self.plan.keep(unit, first, lines, is_last)
        if is_last:
            self.done += self.plan.names(unit)

    def _batches(self, units: Iterable[int], begun: dict[int, str]) -> Iterator[Batch]:
        """Yield the batches of the units without images. begun: gets the units' files of `begin`.

        Where batches begin depends only on the unit and on what is kept of it.
        """
        for number in units:
            offset = kept = self.plan.kept(number)
            unit = self.plan.unit(number)
            tries = self.plan.tries(number)
            begun[number] = self.plan.begin(number)
            entries = islice(entries_of(unit, self.left_out), kept, None)
            if tries >= TRIES:
                entries = _set_aside(unit, kept, tries)
            while batch := list(islice(entries, self.model.batch_size)):
                yield Batch(number, offset, batch)
                offset += len(batch)
            yield Batch(number, offset, [], is_last=True)


def _set_aside(unit: dict[str, Any], kept: int, tries: int) -> Iterator[dict[str, Any]]:
    """Yield entries with an error for the rest of a unit that has ended several processes."""
    entries = unit["images"][kept:] if "images" in unit else [{"image": unit["tar"]}]
    error = f"set aside: {tries} processes ended while they captioned it or images near it"
    for entry in entries:
        yield {**entry, "error": f"{entry['image']}: {error}"}


def _ahead(batches: Iterator[Batch], pool: ThreadPoolExecutor) -> Iterator[Batch]:
    """Yield the batches; the next one is made in a thread of the pool."""
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
        images, for_filter, entries, failure = [], [], [], None
        for entry in batch.entries:
            content = {key: entry.pop(key) for key in ("data", "span") if key in entry}
            name = entry["image"]
            try:
                if "error" not in entry:
                    data = self._content(name, **content)
                    image = self.model.read(name, data, entry.get("prompt"))
                    if self.model.filter:
                        for_filter.append(self.model.filter.read(name, data))
                    images.append(image)
            except UserError as error:
                entry["error"] = str(error)
                # Addresses at https are of many servers, so that the error concerns one file.
                if isinstance(error, stores.StoreError) and not name.startswith("https:"):
                    failure = error
            except Exception as error:  # a broken image must not end the run
                entry["error"] = f"{type(error).__name__}: {error}"
            entries.append(entry)
        if failure and not self._store_answers():
            return batch._replace(entries=[], failure=str(failure))
        image = self.model.collate(images) if images else None
        return batch._replace(entries=entries, image=image, for_filter=for_filter)

    def _content(self, name: str, data: Optional[bytes] = None, span=None) -> Optional[BinaryIO]:
        """Return an image file's content; None if `read` opens it. data, span: see `entries_of`."""
        if span is not None:
            data = stores.read_range(*span)
        elif data is None and stores.is_store(name) and not tables.is_row(name):
            data, self.last_read = stores.read_bytes(name), name
        return None if data is None else io.BytesIO(data)

    def _store_answers(self) -> bool:
        """Return whether the file that was last read can still be read."""
        try:
            return bool(self.last_read) and stores.stamp_if_any(self.last_read) is not None
        except stores.StoreError:
            return False


def _identity(batch: Batch) -> Batch:
    return batch
