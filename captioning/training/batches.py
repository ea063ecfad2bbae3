"""Builds the loader of training batches, and the mean of training images."""

from collections.abc import Sequence
from functools import partial
from typing import Union

from torch import Tensor

from captioning.config import Config
from captioning.data.annotations import Sample
from captioning.data.dataset import TrainingDataset
from captioning.data.image import Preprocessing, decode
from captioning.data.loader import TrainingLoader, training_loader
from captioning.data.randomness import derived_seed, permutation
from captioning.data.shards import ShardDataset, Shards
from captioning.runtime import distributed
from captioning.runtime.progress import progress

MEAN_IMAGE_SAMPLES = 512  # number of images that `mean_image` averages


def training_batches(
    config: Config, samples: Union[Sequence[Sample], Shards], preprocessing: Preprocessing
) -> TrainingLoader:
    """Return the loader of this rank's batches of the training split."""
    return training_loader(
        _dataset(config, samples, preprocessing),
        batch_size=config.batch_size,
        seed=config.seed,
        rank=distributed.rank(),
        world_size=distributed.world_size(),
        num_workers=config.num_workers,
        bucket_batches=config.bucket_batches,
        collate=preprocessing.collate,
    )


def _dataset(
    config: Config, samples: Union[Sequence[Sample], Shards], preprocessing: Preprocessing
) -> TrainingDataset:
    are_shards, dataset_class = isinstance(samples, Shards), TrainingDataset
    if are_shards:
        dataset_class = partial(ShardDataset, shuffle_buffer=config.shuffle_buffer)
    return dataset_class(
        samples=samples,
        image_root=config.image_root,
        transform=preprocessing.training,
        seed=config.seed,
        captions_per_image=config.captions_per_image,
        max_words=config.max_words,
        skip_bad_images=config.skip_bad_images,
        exif=config.exif,
        is_deterministic=preprocessing.is_deterministic and not are_shards,
        drop_image=config.drop_image,
        takes_prompt=preprocessing.takes_prompt,
    )


def mean_image(
    config: Config, samples: Union[Sequence[Sample], Shards], preprocessing: Preprocessing
) -> Tensor:
    """Return the mean (3, S, S) of training images with the preprocessing of evaluation.

    Averages the first MEAN_IMAGE_SAMPLES images of a permutation that is the same in all runs and
    on all ranks. Raises UserError.
    """
    evaluation = preprocessing._replace(
        training=lambda image: preprocessing.evaluation(decode(image, exif=False)),
        is_deterministic=False,
        takes_prompt=False,
    )
    # A value above 1 makes each item of the dataset an image. With 1 an item is a caption, so that
    # images with many captions would count several times. A fixed seed chooses the replacements of
    # unreadable images.
    config = config.model_copy(update={"captions_per_image": 2, "seed": 0})
    dataset = _dataset(config, samples, evaluation)
    chosen = permutation(len(dataset), derived_seed("mean image"))[:MEAN_IMAGE_SAMPLES]
    with progress(len(chosen), "mean image") as bar:
        total = 0.0
        for index in chosen:
            total = total + dataset[0, index]["image"].double()
            bar.update(1)
    return (total / len(chosen)).float()
