"""Builds the parts of a training run: the loader and the captioner, distributed over processes."""

from collections.abc import Sequence
from functools import partial
from inspect import signature
from typing import Any, Optional, Union

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from captioning.captioners.interface import Captioner
from captioning.config import Config
from captioning.data.annotations import Sample
from captioning.data.dataset import TrainingDataset
from captioning.data.image import Preprocessing, decode
from captioning.data.loader import TrainingLoader, training_loader
from captioning.data.randomness import derived_seed, permutation
from captioning.data.shards import ShardDataset, Shards
from captioning.models.build import captioner_from
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line, progress
from captioning.training import sharding

# Newer versions of torch have renamed the argument and warn about the old name.
_SYNC_ARGUMENTS = ("forward_sync_buffers", "broadcast_buffers")
SYNC_BUFFERS = next(
    n for n in _SYNC_ARGUMENTS if n in signature(DistributedDataParallel).parameters
)

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


def build_captioner(config: Config, resumed: Optional[dict[str, Any]]) -> nn.Module:
    """Build the captioner of a run, with the weights of `pretrained` for a new run.

    resumed: the content of the checkpoint from which the run resumes, whose weights the caller
    loads; None for a new run. Raises UserError.
    """
    pretrained = None if resumed else config.pretrained
    with distributed.first_on_each_machine():
        captioner, loaded = captioner_from(config, pretrained, resumed, for_training=True)
    if config.batch_size < captioner.min_batch_size:
        raise UserError(
            f"batch_size is {config.batch_size}, but must be {captioner.min_batch_size} or more: "
            "this captioner has a batch norm, and its feature map at image_size "
            f"{config.image_size} has one position"
        )
    if not resumed:
        log_line(loaded)
    return captioner


def distribute(
    learner: nn.Module,
    captioner: Captioner,
    config: Config,
    device: torch.device,
    dtype: torch.dtype,
) -> nn.Module:
    """Move the learner to the device; return the model to call in training.

    The model is the sharded learner, the learner in a DistributedDataParallel, or, in a single
    process, the learner itself. learner: the captioner, or the `SelfCritical` that wraps the
    captioner. dtype: the precision of a sharded learner.
    """
    group = distributed.create_training_group(config.rank_timeout)
    if config.sharding == "fsdp":
        return sharding.shard(learner, group, device, dtype)
    learner.to(device)
    if config.compile:
        captioner.compile_parts()
    if group is None:
        return learner
    # Running statistics of batch norms must be equal on all ranks. Integer buffers never change.
    sync = any(buffer.is_floating_point() for buffer in learner.buffers())
    return DistributedDataParallel(
        learner,
        device_ids=[device] if device.type == "cuda" else None,
        process_group=group,
        find_unused_parameters=captioner.has_unused_parameters,
        gradient_as_bucket_view=True,  # avoids a second copy of the gradient
        **{SYNC_BUFFERS: sync},
    )
