"""Generates captions of many images on all processes, and gathers them on rank 0."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any, Optional

import torch
from torch import nn

from captioning.config import Config
from captioning.data import (
    EvaluationDataset,
    Loader,
    Prefetcher,
    Sample,
    evaluation_loader,
)
from captioning.models.build import preprocessing_of
from captioning.models.precision import Precision
from captioning.runtime.distributed import gather_on_main, rank, until_asked, world_size
from captioning.runtime.progress import log_line, progress


def caption_images(
    captioner: nn.Module,
    samples: Sequence[Sample],
    config: Config,
    device: torch.device,
    description: str,
) -> Optional[list[dict[str, Any]]]:
    """Return COCO results, [{"image_id", "caption"}] in the order of the samples, on rank 0.

    Other ranks return None. Each image is captioned once. With `skip_bad_images`, unreadable images
    are left out and counted. Raises Stopped on all ranks if one was asked to stop.
    """
    loader, batch_size = images_of(samples, config, rank(), world_size())
    precision = Precision(config.precision, device)
    settings = config.decoding_settings()
    captioner = captioner.for_inference(precision.dtype, config.compile)
    results: list[tuple[int, dict[str, Any]]] = []
    rounds = -(-len(samples) // (batch_size * world_size()))  # rank 0 has the most batches
    with closing(loader), progress(len(samples), description) as bar:
        for batch in until_asked(Prefetcher(loader, device), rounds):
            with precision.autocast():
                captions = captioner.generate(batch["image"], settings)
            for index, image_id, caption in zip(batch["index"], batch["image_id"], captions):
                results.append((index, {"image_id": image_id, "caption": caption}))
            bar.update(min(len(captions) * world_size(), len(samples) - bar.n))
    gathered = gather_on_main((results, loader.skipped))
    if gathered is None:
        return None
    skipped = sum(count for _, count in gathered)
    if skipped:
        log_line(f"{skipped} of {len(samples)} images could not be read and have no caption")
    everything = sorted((pair for part, _ in gathered for pair in part), key=lambda pair: pair[0])
    return [result for _, result in everything]


def images_of(
    samples: Sequence[Sample], config: Config, rank: int = 0, world_size: int = 1
) -> tuple[Loader, int]:
    """Return a loader of one process's share of the preprocessed images, and the batch size."""
    made = preprocessing_of(config)
    dataset = EvaluationDataset(samples, config.image_root, made.evaluation, config.skip_bad_images)
    size = config.eval_batch_size or config.batch_size
    loader = evaluation_loader(dataset, size, rank, world_size, config.num_workers, made.join)
    return loader, size
