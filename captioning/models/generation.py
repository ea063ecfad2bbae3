"""Generates captions of many images on all processes, and gathers them on rank 0."""

import dataclasses
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Optional

import torch
from torch import nn

from captioning.config import Config
from captioning.data.annotations import Sample
from captioning.data.dataset import EvaluationDataset
from captioning.data.loader import Loader, evaluation_loader, on_device
from captioning.models.build import preprocessing_of
from captioning.models.precision import Precision
from captioning.models.prompts import caption_lists, check_prompts
from captioning.models.reranking import Reranker
from captioning.runtime.distributed import gather_on_main, rank, until_stop_requested, world_size
from captioning.runtime.progress import log_line, progress


def caption_images(
    captioner: nn.Module,
    samples: Sequence[Sample],
    config: Config,
    device: torch.device,
    description: str,
) -> Optional[list[dict[str, Any]]]:
    """Return COCO results, [{"image_id", "caption"}] in the order of the samples, on rank 0.

    Other ranks return None. All ranks call this. Each image is captioned on one rank. description:
    the text of the progress bar. With `save_candidates`, a result also has "candidates", see
    `caption_lists`. "cut": True marks a caption that was cut at max_length. With `skip_bad_images`,
    unreadable images are left out. Log lines count both. Raises UserError, and Stopped on all ranks
    if one was asked to stop.
    """
    loader, batch_size = build_image_loader(samples, config, rank(), world_size())
    precision = Precision(config.precision, device)
    settings, reranking = config.decoding_settings(), config.reranking()
    if reranking and config.save_candidates:
        reranking = dataclasses.replace(reranking, num_return=reranking.num_candidates)
    check_prompts(samples, captioner, config, "max_length")
    model = captioner.for_inference(precision.dtype, config.compile)
    generator = Reranker(model, reranking, device) if reranking else model
    results = {}  # by the index of the sample
    rounds = -(-len(samples) // (batch_size * world_size()))  # rank 0 has the most batches
    with closing(loader), progress(len(samples), description) as bar:
        for batch in until_stop_requested(on_device(loader, device), rounds):
            with precision.autocast():
                inputs = batch["image"], settings, batch["prompt"]
                captions = caption_lists(generator, model, *inputs)
            for index, image_id, candidates in zip(batch["index"], batch["image_id"], captions):
                result = {"image_id": image_id, "caption": candidates[0]["caption"]}
                if candidates[0].get("cut"):
                    result["cut"] = True
                if config.save_candidates:
                    result["candidates"] = candidates
                results[index] = result
            bar.update(min(len(batch["index"]) * world_size(), len(samples) - bar.n))
    gathered = gather_on_main((results, loader.skipped))
    if gathered is None:
        return None
    for rank_results, _ in gathered:
        results.update(rank_results)
    if skipped := sum(rank_skipped for _, rank_skipped in gathered):
        log_line(f"{skipped} of {len(samples)} images could not be read and have no caption")
    if cut := sum("cut" in result for result in results.values()):
        log_line(f"{cut} of {len(results)} captions were cut at max_length; they have cut: true")
    return [results[index] for index in sorted(results)]


def build_image_loader(
    samples: Sequence[Sample], config: Config, rank: int = 0, world_size: int = 1
) -> tuple[Loader, int]:
    """Return a loader of this rank's share of the samples' images, and the batch size.

    The loader preprocesses the images as for evaluation.
    """
    preprocessing = preprocessing_of(config)
    dataset = EvaluationDataset(
        samples=samples,
        image_root=config.image_root,
        transform=preprocessing.evaluation,
        skip_bad_images=config.skip_bad_images,
        exif=config.exif,
        takes_prompt=preprocessing.takes_prompt,
    )
    batch_size = config.eval_batch_size or config.batch_size
    loader = evaluation_loader(
        dataset,
        batch_size=batch_size,
        rank=rank,
        world_size=world_size,
        num_workers=config.num_workers,
        collate=preprocessing.collate,
    )
    return loader, batch_size
