"""Defines the datasets for training and evaluation, and cleans captions as BLIP does."""

import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any, Callable

import torch
from PIL import Image
from torch.utils.data import Dataset

from captioning.data.annotations import Sample
from captioning.data.image import apply_transform, load_image, open_image
from captioning.data.randomness import derived_seed, permutation, seeded
from captioning.files.stores import StoreError
from captioning.runtime.errors import UserError

Transform = Callable[[Image.Image], Any]

# The number of replacements that are tried for an unreadable image. If none can be read, the folder
# is probably wrong.
MAX_REPLACEMENTS = 100

# The maximum size in bytes of the transformed images that a process keeps in memory.
MAX_KEPT_BYTES = 2**28

_PUNCTUATION = re.compile(r"[.!\"()*#:;~]")
_WHITE_SPACE_RUN = re.compile(r"\s{2,}")


def preprocess_caption(text: str, max_words: int = 30) -> str:
    """Clean a caption for training, as BLIP does. The tokenizer changes it to lower case or not.

    The characters . ! " ( ) * # : ; ~ become spaces, but commas,
    apostrophes and hyphens stay. Two or more white-space characters become one space. Words after
    the first `max_words` are cut off.
    """
    text = _PUNCTUATION.sub(" ", text)
    text = _WHITE_SPACE_RUN.sub(" ", text).rstrip("\n").strip(" ")
    return " ".join(text.split(" ")[:max_words])


@dataclass(eq=False, repr=False)
class TrainingDataset(Dataset):
    """Augmented images with captions. An item depends only on seed, epoch and index.

    With `captions_per_image` 1, an item is an (image, caption) pair, and the pairs of an image are
    adjacent. With k > 1, an item is an image with k of its captions, sampled without replacement.
    If an image has fewer than k captions, all are used and some are repeated.

    `dataset[epoch, index]` is a dict:

    - image: the output of `transform`;
    - captions: k strings, see `preprocess_caption`;
    - image_id, index, prompt: of the item that was read, which may be a replacement;
    - unreadable: the errors of the items that were tried before it; usually empty.

    An unreadable image raises UserError. With `skip_bad_images`, up to MAX_REPLACEMENTS random
    items, chosen by (seed, index), are tried instead. UserError is raised if all of them fail, or
    if a store does not answer.

    is_deterministic: whether `transform` is deterministic and returns tensors. If so, and if the
    tensors of all images take at most MAX_KEPT_BYTES, each process keeps the transformed images.

    drop_image: if above 0, items have the key `dropped`, a bool that is true with this probability.
    Training replaces a dropped image by the null image, see `Captioner.encode_null`.

    takes_prompt: `transform` takes the sample's prompt, if it has one, after the image.
    """

    samples: Sequence[Sample]
    image_root: str
    transform: Transform
    seed: int
    captions_per_image: int = 1
    max_words: int = 30
    skip_bad_images: bool = False
    is_deterministic: bool = False
    drop_image: float = 0.0
    takes_prompt: bool = False
    # {image of a sample: transformed image}, see is_deterministic
    _images: dict[str, torch.Tensor] = field(default_factory=dict, init=False)

    def __post_init__(self):
        # Cumulative numbers of (image, caption) pairs.
        self._pairs_up_to = list(accumulate(len(sample.captions) for sample in self.samples))

    def __len__(self) -> int:
        return self._pairs_up_to[-1] if self.captions_per_image == 1 else len(self.samples)

    def lengths(self) -> list[int]:
        """Return the number of words of each item's longest caption."""
        counts = [
            [len(preprocess_caption(text, self.max_words).split()) for text in sample.captions]
            for sample in self.samples
        ]
        if self.captions_per_image > 1:
            return list(map(max, counts))
        return list(chain.from_iterable(counts))

    def order(self, epoch: int) -> Iterable[int]:
        """Return the shuffled indices of an epoch."""
        return permutation(len(self), derived_seed("order", self.seed, epoch))

    def __getitem__(self, key: tuple[int, int]) -> dict[str, Any]:
        epoch, index = key
        unreadable = []
        for candidate in self._candidates(index):
            try:
                return {**self._item(epoch, index, candidate), "unreadable": unreadable}
            except UserError as error:
                _raise_unless(self.skip_bad_images, error)
                unreadable.append(str(error))
        raise UserError(
            f"{unreadable[0]} (and none of {len(unreadable) - 1} replacements could be read)"
        )

    def _candidates(self, index: int) -> Iterator[int]:
        """Yield `index`, then its replacements."""
        yield index
        random = torch.Generator().manual_seed(derived_seed("replacement", self.seed, index))
        yield from torch.randint(len(self), (MAX_REPLACEMENTS,), generator=random).tolist()

    def _item(self, epoch: int, index: int, candidate: int) -> dict[str, Any]:
        """Return the item `candidate`, augmented with the random numbers of the item `index`."""
        sample, chosen = self._sample_and_captions(candidate)
        with seeded(derived_seed("item", self.seed, epoch, index)):
            if self.captions_per_image > 1:
                chosen = _random_positions(len(sample.captions), self.captions_per_image)
            image = self._image(sample)
        captions = [preprocess_caption(sample.captions[i], self.max_words) for i in chosen]
        item = {"image": image, "captions": captions}
        if self.drop_image:
            # A separate generator keeps all other random numbers independent of drop_image.
            generator = torch.Generator().manual_seed(derived_seed("drop", self.seed, epoch, index))
            item["dropped"] = torch.rand((), generator=generator).item() < self.drop_image
        return {**item, "image_id": sample.image_id, "index": candidate, "prompt": sample.prompt}

    def _image(self, sample: Sample) -> Any:
        if sample.image in self._images:
            return self._images[sample.image]
        with self._open(sample) as opened:
            image = apply_transform(
                self.transform, opened, sample.image, sample.prompt, self.takes_prompt
            )
        if self.is_deterministic and image.nbytes * len(self.samples) <= MAX_KEPT_BYTES:
            self._images[sample.image] = image
        return image

    def _open(self, sample: Sample) -> Image.Image:
        return open_image(os.path.join(self.image_root, sample.image))

    def _sample_and_captions(self, index: int) -> tuple[Sample, list[int]]:
        """Return an item's sample and [position of its caption].

        The list is empty if captions_per_image is above 1, because `_item` then chooses captions.
        """
        samples, pairs_up_to, index = self._part(index)
        if self.captions_per_image > 1:
            return samples[index], []
        position, caption = group_and_position(pairs_up_to, index)
        return samples[position], [caption]

    def _part(self, index: int) -> tuple[Sequence[Sample], list[int], int]:
        """Return the part of the samples with an item, see `_pairs_up_to`, and its index there."""
        return self.samples, self._pairs_up_to, index


@dataclass(eq=False, repr=False)
class EvaluationDataset(Dataset):
    """Images to generate captions for.

    `dataset[index]` is a dict: image (the output of `transform`), image_id, index, prompt, and
    unreadable, an empty list. An unreadable image raises UserError. With `skip_bad_images`, its
    item has None as image and the error message in `unreadable`, and a loader leaves the item out;
    UserError is then raised only if a store does not answer.
    """

    samples: Sequence[Sample]
    image_root: str
    transform: Transform
    skip_bad_images: bool = False
    takes_prompt: bool = False  # see TrainingDataset
    exif: bool = True  # see `decode`

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample, image, unreadable = self.samples[index], None, []
        try:
            photo = load_image(os.path.join(self.image_root, sample.image), exif=self.exif)
            image = apply_transform(
                self.transform, photo, sample.image, sample.prompt, self.takes_prompt
            )
        except UserError as error:
            _raise_unless(self.skip_bad_images, error)
            unreadable.append(str(error))
        item = {"image": image, "image_id": sample.image_id, "index": index}
        return {**item, "prompt": sample.prompt, "unreadable": unreadable}


def _raise_unless(skip: bool, error: UserError) -> None:
    """Raise an error about an image, unless unreadable images are skipped and this is one."""
    if isinstance(error, StoreError):
        raise error
    if not skip:
        raise UserError(f"{error}, or set skip_bad_images=true") from error


def group_and_position(cumulative_sizes: Sequence[int], index: int) -> tuple[int, int]:
    """Return the group of an item, and the position of the item in this group.

    index: the item's position in the concatenation of all groups. cumulative_sizes: the sums of the
    sizes of the first 1, 2, ... groups.
    """
    group = bisect_right(cumulative_sizes, index)
    return group, index - (cumulative_sizes[group - 1] if group else 0)


def _random_positions(size: int, count: int) -> list[int]:
    """Return `count` random integers below `size`. The first min(count, size) are distinct."""
    distinct = torch.randperm(size)[:count]
    return torch.cat([distinct, torch.randint(size, (count - len(distinct),))]).tolist()
