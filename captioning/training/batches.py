"""Builds the loader of training batches."""

from collections.abc import Sequence
from functools import partial
from typing import Union

from captioning.config import Config
from captioning.data.annotations import Sample
from captioning.data.dataset import TrainingDataset
from captioning.data.image import Preprocessing
from captioning.data.loader import TrainingLoader, training_loader
from captioning.data.shards import ShardDataset, Shards
from captioning.runtime import distributed


def training_batches(
    config: Config, samples: Union[Sequence[Sample], Shards], preprocessing: Preprocessing
) -> TrainingLoader:
    """Return the loader of this rank's batches of the training split."""
    are_shards, dataset_class = isinstance(samples, Shards), TrainingDataset
    if are_shards:
        dataset_class = partial(ShardDataset, shuffle_buffer=config.shuffle_buffer)
    dataset = dataset_class(
        samples=samples,
        image_root=config.image_root,
        transform=preprocessing.training,
        seed=config.seed,
        captions_per_image=config.captions_per_image,
        max_words=config.max_words,
        skip_bad_images=config.skip_bad_images,
        is_deterministic=preprocessing.is_deterministic and not are_shards,
        drop_image=config.drop_image,
        takes_prompt=preprocessing.takes_prompt,
    )
    return training_loader(
        dataset,
        batch_size=config.batch_size,
        rank=distributed.rank(),
        world_size=distributed.world_size(),
        num_workers=config.num_workers,
        bucket_batches=config.bucket_batches,
        collate=preprocessing.collate,
    )
