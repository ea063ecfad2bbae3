"""Training on tar shards: their samples, where they lie, and an order that reads a few at a time.

An epoch's order is a function of seed, epoch and the shards' sizes alone. So it is the same on any
number of processes and workers, and begins anywhere without what comes before being read.
"""

import io
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, NamedTuple

import torch
from PIL import Image

from captioning.data.dataset import MAX_REPLACEMENTS, TrainingDataset
from captioning.data.image import open_image
from captioning.data.randomness import derived_seed, permutation
from captioning.data.tar_index import Row, read_rows, summaries
from captioning.files import stores
from captioning.runtime.errors import UserError


class Stored(NamedTuple):
    """A sample of a tar, with the place of its image there; see `annotations.Sample`."""

    image: str  # the tar's, a slash and the name in it
    captions: tuple[str, ...]
    image_id: str  # the same
    place: tuple[str, int, int]  # the tar, the first byte and the number of bytes


class Shards:
    """The samples of tars, read tar by tar. Iterating leaves out those that cannot be had.

    Raises UserError, and Stopped where it was asked for while tars were looked into.
    """

    def __init__(self, tars: Sequence[str]):
        self.tars = list(tars)
        self.known = summaries(self.tars)
        if not sum(summary["samples"] for summary in self.known):
            first = next((s["first"] for s in self.known if s["first"]), "none has an image")
            raise UserError(f"{self.tars[0]}: no samples in {len(self.tars)} tars: {first}")

    def __len__(self) -> int:
        return sum(summary["samples"] for summary in self.known)

    def __iter__(self) -> Iterator[Stored]:
        for tar, summary in zip(self.tars, self.known):
            yield from (stored(tar, row) for row in read_rows(tar, summary) if "error" not in row)


def stored(tar: str, row: Row) -> Stored:
    name = f"{tar}/{row['image']}"
    return Stored(name, tuple(row["captions"]), name, (tar, row["at"], row["size"]))


@dataclass(eq=False, repr=False)
class ShardDataset(TrainingDataset):
    """A TrainingDataset of `samples`, Shards: items of one tar after the other.

    A sample that the index of its tar has no place or captions for is one item that is unreadable;
    without `skip_bad_images` there must be none. shuffle_buffer: items that are shuffled together,
    at least, of whole tars; of as many tars the index is kept in memory.
    """

    shuffle_buffer: int = 50_000

    def __post_init__(self):
        known = self.samples.known
        first = next((summary["first"] for summary in known if summary["errors"]), None)
        if first and not self.skip_bad_images:
            count = sum(summary["errors"] for summary in known)
            more = f", and {count - 1} more" * (count > 1)
            raise UserError(f"{first}{more}: mend it, or set skip_bad_images=true")
        what = "captions" if self.captions_per_image == 1 else "samples"
        self._sizes = [summary[what] + summary["errors"] for summary in known]
        self._up_to = list(accumulate(self._sizes))
        self._rows: OrderedDict[int, tuple[list[Row], list[int]]] = OrderedDict()
        self._ahead: dict[tuple[str, int, int], Any] = {}

    def __len__(self) -> int:
        return self._up_to[-1]

    def order(self, seed: int, epoch: int, first: int = 0) -> Iterator[int]:
        """Shuffled tars, of which so many are shuffled together as `shuffle_buffer` takes."""
        done = 0
        for number, tars in enumerate(self._groups(seed, epoch)):
            size = sum(self._sizes[tar] for tar in tars)
            if done + size > first:
                ranges = (range(self._up_to[t] - self._sizes[t], self._up_to[t]) for t in tars)
                items = list(chain.from_iterable(ranges))
                places = permutation(size, derived_seed("group", seed, epoch, number))
                yield from (items[place] for place in places[max(first - done, 0) :])
            done += size

    def _groups(self, seed: int, epoch: int) -> Iterator[list[int]]:
        group: list[int] = []
        size = 0
        for tar in permutation(len(self._sizes), derived_seed("tars", seed, epoch)):
            group.append(tar)
            size += self._sizes[tar]
            if size >= self.shuffle_buffer:
                yield group
                group, size = [], 0
        if group:
            yield group

    def read_ahead(self, keys: Sequence[tuple[int, int]]) -> None:
        """Ask a store for the images of a batch at once."""
        places = []
        for _, index in keys:
            tar, row, _ = self._found(index)
            if "error" not in row and stores.is_store(self.samples.tars[tar]):
                places.append(stored(self.samples.tars[tar], row).place)
        self._ahead = dict(zip(places, stores.spans(places)))

    def _candidates(self, index: int) -> Iterator[int]:
        yield index
        seed = derived_seed("replacement", self.seed, index)
        random = torch.Generator().manual_seed(seed)
        yield from torch.randint(len(self), (MAX_REPLACEMENTS,), generator=random).tolist()

    def _sample(self, index: int) -> tuple[Stored, list[int]]:
        tar, row, caption = self._found(index)
        if "error" in row:
            raise UserError(row["error"])
        return stored(self.samples.tars[tar], row), caption

    def _found(self, index: int) -> tuple[int, Row, list[int]]:
        """The tar of an item, its row there, and which of its captions if `index` decides that."""
        tar = bisect_right(self._up_to, index)
        rows, items_up_to = self._rows_of(tar)
        place = index - self._up_to[tar] + self._sizes[tar]
        if self.captions_per_image > 1:
            return tar, rows[place], []
        position = bisect_right(items_up_to, place)
        row = rows[position]
        return tar, row, [place - items_up_to[position] + _items(row)]

    def _rows_of(self, tar: int) -> tuple[list[Row], list[int]]:
        if tar not in self._rows:
            rows = read_rows(self.samples.tars[tar], self.samples.known[tar])
            items_up_to = list(accumulate(map(_items, rows)))
            items = items_up_to[-1] if self.captions_per_image == 1 else len(rows)
            if items != self._sizes[tar]:
                raise UserError(f"{self.samples.tars[tar]}: it has changed since training began")
            self._rows[tar] = rows, items_up_to
            # Those of two groups: batches of the next one are read before this one is done with.
            while len(self._rows) > 1 and self._kept() > 2 * self.shuffle_buffer + self._sizes[tar]:
                self._rows.popitem(last=False)
        self._rows.move_to_end(tar)
        return self._rows[tar]

    def _kept(self) -> int:
        return sum(self._sizes[tar] for tar in self._rows)

    def _opened(self, sample: Stored) -> Image.Image:
        data = self._ahead.get(sample.place)
        if data is None:
            data = stores.span(*sample.place)
        if isinstance(data, UserError):
            raise data
        return open_image(sample.image, io.BytesIO(data))


def _items(row: Row) -> int:
    """Items of captions_per_image 1."""
    return len(row.get("captions", [""]))
