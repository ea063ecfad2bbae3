"""Reads training samples from tar shards, in an order that needs only a few tars at a time.

The order of an epoch depends only on the seed, the epoch and the sizes of the tars. The order is
the same for any number of processes and workers, and it can start at any item without reading the
earlier items. webdataset is not used for this: its order depends on the numbers of processes and
workers, and it resumes by reading from the start.
"""

import io
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Union

import torch
from PIL import Image

from captioning.data.annotations import Sample
from captioning.data.dataset import MAX_REPLACEMENTS, TrainingDataset, group_and_position
from captioning.data.image import open_image
from captioning.data.randomness import derived_seed, permutation
from captioning.data.tar_index import read_rows, summaries
from captioning.files import stores
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_once


class Shards:
    """The samples of several tars, in order. An iteration leaves out samples with an error.

    The constructor indexes the tars. It raises UserError, and Stopped if a stop is requested.
    """

    def __init__(self, tars: Sequence[str]):
        self.tars = list(tars)
        self.summaries = summaries(self.tars)
        if not len(self):
            first = next((s["first"] for s in self.summaries if s["first"]), "none has an image")
            raise UserError(f"{self.tars[0]}: no samples in {len(self.tars)} tars: {first}")
        left_out = [name for summary in self.summaries for name in summary["left_out"]]
        if left_out:
            log_once(
                f"{len(left_out):,} files of the tars are not used, such as {left_out[0]}: a "
                "sample has one image, and its key ends at the first dot of the name"
            )

    def __len__(self) -> int:
        return sum(summary["samples"] for summary in self.summaries)

    def __iter__(self) -> Iterator[Sample]:
        return self._samples_of_tars_with("samples")

    def with_prompts(self) -> Iterator[Sample]:
        """Yield the samples of the tars that have prompts."""
        return self._samples_of_tars_with("prompts")

    def _samples_of_tars_with(self, count: str) -> Iterator[Sample]:
        for number, summary in enumerate(self.summaries):
            if summary[count]:
                yield from (row for row in self.rows(number) if isinstance(row, Sample))

    def rows(self, number: int) -> list[Union[Sample, str]]:
        """Return the samples of a tar, and the errors of those that cannot be used."""
        return read_rows(self.tars[number], self.summaries[number])


@dataclass(eq=False, repr=False)
class ShardDataset(TrainingDataset):
    """A TrainingDataset whose `samples` are `Shards`.

    A sample with an error in the tar's index is one unreadable item. Such samples are allowed only
    with `skip_bad_images`.

    shuffle_buffer: tars are grouped until a group has at least this many items, and the items of a
    group are shuffled together. The index rows of about twice as many items are kept in memory.
    """

    shuffle_buffer: int = 50_000

    def __post_init__(self):
        tars = self.samples.summaries
        if count := sum(tar["errors"] for tar in tars):
            first = next(tar["first"] for tar in tars if tar["errors"])
            line = f"{count:,} of the tars' samples cannot be used. The first: {first}"
            if not self.skip_bad_images:
                raise UserError(f"{line}, or set skip_bad_images=true")
            log_once(line)
        unit = "captions" if self.captions_per_image == 1 else "samples"
        self._sizes = [tar[unit] + tar["errors"] for tar in tars]  # items of each tar
        self._ends = list(accumulate(self._sizes))  # of the tars, in items
        # {tar: its samples and errors, and the end of each of them in items}, least recently used
        # first
        self._rows = OrderedDict()
        # {span of an image: bytes of the image, or the error of reading them}
        self._prefetched = {}

    def __len__(self) -> int:
        return self._ends[-1]

    def order(self, seed: int, epoch: int, first: int = 0) -> Iterator[int]:
        """Return the shuffled items of an epoch from position `first` on.

        The tars are shuffled and divided into groups that fill `shuffle_buffer`. Then the items of
        each group are shuffled.
        """
        num_before = 0
        for number, tars in enumerate(self._groups(seed, epoch)):
            size = sum(self._sizes[tar] for tar in tars)
            if num_before + size > first:
                ranges = (
                    range(self._ends[tar] - self._sizes[tar], self._ends[tar]) for tar in tars
                )
                items = list(chain.from_iterable(ranges))
                shuffled = permutation(size, derived_seed("group", seed, epoch, number))
                yield from (items[offset] for offset in shuffled[max(first - num_before, 0) :])
            num_before += size

    def _groups(self, seed: int, epoch: int) -> Iterator[list[int]]:
        group, size = [], 0
        for tar in permutation(len(self._sizes), derived_seed("tars", seed, epoch)):
            group.append(tar)
            size += self._sizes[tar]
            if size >= self.shuffle_buffer:
                yield group
                group, size = [], 0
        if group:
            yield group

    def prefetch(self, keys: Sequence[tuple[int, int]]) -> None:
        """Read the images of a batch from a store, concurrently, for `_open`.

        keys: (epoch, index) of the items. Images on disk are not prefetched.
        """
        rows = (self._find(index)[0] for _, index in keys)
        spans = [row.span for row in rows if isinstance(row, Sample)]
        spans = [span for span in spans if stores.is_store(span.address)]
        self._prefetched = dict(zip(spans, stores.read_ranges(spans)))

    def _candidates(self, index: int) -> Iterator[int]:
        yield index
        random = torch.Generator().manual_seed(derived_seed("replacement", self.seed, index))
        yield from torch.randint(len(self), (MAX_REPLACEMENTS,), generator=random).tolist()

    def _sample_and_captions(self, index: int) -> tuple[Sample, list[int]]:
        row, captions = self._find(index)
        if isinstance(row, str):
            raise UserError(row)
        return row, captions

    def _find(self, index: int) -> tuple[Union[Sample, str], list[int]]:
        """Return an item's sample or error, and [position of its caption].

        The list is empty if captions_per_image is above 1.
        """
        tar, item = group_and_position(self._ends, index)
        rows, item_ends = self._rows_of(tar)
        if self.captions_per_image > 1:
            return rows[item], []
        position, caption = group_and_position(item_ends, item)
        return rows[position], [caption]

    def _rows_of(self, tar: int) -> tuple[list[Union[Sample, str]], list[int]]:
        if tar not in self._rows:
            rows = self.samples.rows(tar)
            # With captions_per_image 1, each caption is an item, and each error is one item.
            sizes = (len(row.captions) if isinstance(row, Sample) else 1 for row in rows)
            item_ends = list(accumulate(sizes))
            items = item_ends[-1] if self.captions_per_image == 1 else len(rows)
            if items != self._sizes[tar]:
                raise UserError(f"{self.samples.tars[tar]}: it has changed since training began")
            self._rows[tar] = rows, item_ends
            # Keep the rows of two groups in memory: a batch may be at the end of one group and at
            # the beginning of the next group.
            max_rows = 2 * self.shuffle_buffer + self._sizes[tar]
            while len(self._rows) > 1 and sum(self._sizes[tar] for tar in self._rows) > max_rows:
                self._rows.popitem(last=False)
        self._rows.move_to_end(tar)
        return self._rows[tar]

    def _open(self, sample: Sample) -> Image.Image:
        data = self._prefetched.get(sample.span)
        if data is None:
            data = stores.read_range(*sample.span)
        if isinstance(data, UserError):
            raise data
        return open_image(sample.image, io.BytesIO(data))
