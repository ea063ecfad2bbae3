"""Tars of samples, their data sets, and the comparison of batches."""

import json

import torch

from captioning.data.augmentation import training_transform
from captioning.data.shards import ShardDataset, Shards

KEYS = ("captions", "image_id", "index")


def assert_same_batches(first, second, keys=KEYS):
    assert len(first) == len(second)
    for one, other in zip(first, second):
        assert torch.equal(one["image"], other["image"])
        assert [one[key] for key in keys] == [other[key] for key in keys]


def members(photos, samples, suffix):
    """Yield the members of the samples, with captions in .txt or .json files."""
    for sample in samples:
        captions = list(sample.captions)
        fields = {"captions": captions} if len(captions) > 1 else {"caption": captions[0]}
        text = "\n".join(captions) if suffix == "txt" else json.dumps({**fields, "width": 24})
        yield sample.image, (photos / sample.image).read_bytes()
        yield f"{sample.image.partition('.')[0]}.{suffix}", text.encode()


def dataset(tars, captions_per_image=1, skip=False, shuffle_buffer=1000):
    """Return the training data set of the tars, of images of 8 by 8."""
    settings = {"captions_per_image": captions_per_image, "shuffle_buffer": shuffle_buffer}
    transform = training_transform(8)
    return ShardDataset(Shards(tars, skip), "", transform, 7, skip_bad_images=skip, **settings)
