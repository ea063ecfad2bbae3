"""Reads training samples from tar shards, in an order that needs only a few tars at a time.

The order of an epoch depends only on the seed, the epoch and the sizes of the tars. The order is
the same for any number of processes and workers, and it can start at any item without reading the
earlier items. webdataset is not used for this: its order depends on the numbers of processes and
workers, and it resumes by reading from the start.
"""

import io
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain

from PIL import Image

from captioning.data.annotations import Sample
from captioning.data.dataset import TrainingDataset, group_and_position
from captioning.data.image import open_image
from captioning.data.randomness import derived_seed, permutation
from captioning.data.tar_index import read_samples, summaries
from captioning.files import stores
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_once


class Shards:
    """The samples of several tars, in order, without samples that cannot be used.

    The constructor indexes the tars. It raises UserError, for samples that cannot be used unless
    `skip_bad_images` is set, and Stopped if a stop is requested.
    """

    def __init__(self, tars: Sequence[str], skip_bad_images: bool = False):
        self.summaries = summaries(list(tars))
        errors = [error for summary in self.summaries for error in summary["errors"]]
        left_out = [name for summary in self.summaries for name in summary["left_out"]]
        if not len(self):
            first = next(iter(errors), "none has an image")
            raise UserError(f"{tars[0]}: no samples in {len(tars)} tars: {first}")
        if errors:
            line = f"{len(errors):,} of the tars' samples cannot be used. The first: {errors[0]}"
            if not skip_bad_images:
                raise UserError(f"{line}, or set skip_bad_images=true")
            log_once(line)
        if left_out:
            log_once(
                f"{len(left_out):,} files of the tars are not used, such as {left_out[0]}: a "
                "sample has one image, and its key ends at the first dot of the name"
            )

    def __len__(self) -> int:
        return sum(summary["samples"] for summary in self.summaries)

    def __iter__(self) -> Iterator[Sample]:
        return chain.from_iterable(map(read_samples, self.summaries))

    def with_prompts(self) -> Iterator[Sample]:
        """Return an iterator over the samples of the tars that have prompts."""
        with_prompts = (summary for summary in self.summaries if summary["prompts"])
        return chain.from_iterable(map(read_samples, with_prompts))


@dataclass(eq=False, repr=False)
class ShardDataset(TrainingDataset):
    """A TrainingDataset whose `samples` are `Shards`.

    shuffle_buffer: tars are grouped until a group has at least this many items, and the items of a
    group are shuffled together. The samples of about twice as many items are kept in memory.
    """

    shuffle_buffer: int = 50_000

    def __post_init__(self):
        unit = "captions" if self.captions_per_image == 1 else "samples"
        self._sizes = [summary[unit] for summary in self.samples.summaries]  # items of each tar
        self._ends = list(accumulate(self._sizes))  # of the tars, in items
        # Keep the samples of two groups in memory: a batch may be at the end of one group and at
        # the beginning of the next group.
        most_in_group = 1 + bisect_left(list(accumulate(sorted(self._sizes))), self.shuffle_buffer)
        self._loaded = lru_cache(2 * most_in_group)(self._load)
        self._prefetched = {}  # {span of an image: future of the image's bytes}

    def __len__(self) -> int:
        return self._ends[-1]

    def order(self, epoch: int) -> Iterator[int]:
        """Yield the shuffled items of an epoch.

        The tars are shuffled and divided into groups that fill `shuffle_buffer`. Then the items of
        each group are shuffled.
        """
        tars = permutation(len(self._sizes), derived_seed("tars", self.seed, epoch))
        items, number = [], 0  # of the group
        for tar in tars:
            items += range(self._ends[tar] - self._sizes[tar], self._ends[tar])
            if len(items) >= self.shuffle_buffer or tar == tars[-1]:
                shuffled = permutation(len(items), derived_seed("group", self.seed, epoch, number))
                yield from (items[offset] for offset in shuffled)
                items, number = [], number + 1

    def prefetch(self, keys: Sequence[tuple[int, int]]) -> None:
        """Read the images of a batch from a store, concurrently, for `_open`.

        keys: (epoch, index) of the items. Images on disk are not prefetched.
        """
        spans = [self._sample_and_captions(index)[0].span for _, index in keys]
        spans = filter(lambda span: stores.is_store(span.address), spans)
        with ThreadPoolExecutor(stores.THREADS) as pool:
            self._prefetched = {span: pool.submit(stores.read_range, *span) for span in spans}

    def _part(self, index: int) -> tuple[list[Sample], list[int], int]:
        tar, index = group_and_position(self._ends, index)
        return (*self._loaded(tar), index)

    def _load(self, tar: int) -> tuple[list[Sample], list[int]]:
        """Return a tar's samples, and their cumulative numbers of captions."""
        samples = read_samples(self.samples.summaries[tar])
        return samples, list(accumulate(len(sample.captions) for sample in samples))

    def _open(self, sample: Sample) -> Image.Image:
        prefetched = self._prefetched.get(sample.span)
        data = prefetched.result() if prefetched else stores.read_range(*sample.span)
        return open_image(sample.image, io.BytesIO(data))
