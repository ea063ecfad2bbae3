"""Captions the batches of bulk captioning with a checkpoint, and makes the output lines."""

import dataclasses
from collections.abc import Iterable
from typing import Any, BinaryIO, Optional

import torch

from captioning.bulk.request import Request
from captioning.bulk.work import Batch
from captioning.data.image import apply_transform, load_image
from captioning.data.randomness import derived_seed
from captioning.files.stores import without_secrets
from captioning.models.build import captioner_from, preprocessing_of, trained_config
from captioning.models.precision import Precision, check_precision
from captioning.models.prompts import caption_lists, prompt_ids
from captioning.models.reranking import Reranker
from captioning.runtime.errors import UserError, value_errors_as_user_errors
from decoding import DecodingSettings

# Settings without an effect on greedy and beam search, and without reranking.
SAMPLING = ("top_p", "top_k", "temperature")
RERANKING = ("num_candidates", "candidates", "rerank_weight")
# Settings that are off by default. They are recorded only if they differ from the default.
OFF_BY_DEFAULT = (
    "no_repeat_ngram_size",
    "num_beam_groups",
    "diversity_penalty",
    "guidance_scale",
)


class CheckpointModel:
    """A captioner with its preprocessing and decoding settings.

    changes: {key: value} that replace values of the checkpoint's configuration.

    A `Worker` uses `read` and `collate`, which make a batch of image files, `batch_size`,
    `num_workers`, `prefetch`, `captions`, `origin`, which each line records, and `filter`, an
    `ItmFilter` or None. report: a log line that says what was loaded. The constructor raises
    UserError.
    """

    filter = None

    def __init__(self, request: Request, changes: dict[str, Any], device: torch.device):
        run = self.config = trained_config(request.checkpoint, request.config, changes)
        for name in changes:
            if name in SAMPLING and not (run.sample or run.rerank):
                raise UserError(f"{name} has no effect without sample=true")
            if name in RERANKING and not run.rerank:
                raise UserError(f"{name} has no effect without rerank")
        check_precision(run, device)
        number = {"num_return": request.num_return}
        with value_errors_as_user_errors():
            settings, reranking = run.decoding_settings(), run.reranking()
            if reranking is None:
                used = settings = dataclasses.replace(settings, **number)
            else:
                reranking = dataclasses.replace(reranking, **number)
                used = reranking.candidate_settings(settings)
        captioner, self.report = captioner_from(run, request.checkpoint)
        self.precision = Precision(run.precision, device)
        self.captioner = captioner.to(device).for_inference(self.precision.dtype, run.compile)
        self.generator = self.captioner
        self.settings, self.device, self.num_workers = settings, device, run.num_workers
        self.batch_size = run.eval_batch_size or run.batch_size
        self.preprocessing = preprocessing_of(run)
        self.collate = self.preprocessing.collate
        recorded = {**recorded_settings(used, run.seed), "precision": run.precision}
        if reranking is not None:
            self.generator = Reranker(self.captioner, reranking, device)
            recorded.update(reranking.recorded_settings())
            if reranking.model:
                recorded["rerank_model"] = without_secrets(reranking.model)
        name = without_secrets(request.checkpoint)
        self.origin = {"checkpoint": name, "settings": recorded}

    def read(self, name: str, data: Optional[BinaryIO], prompt: Optional[str]) -> Any:
        """Return the captioner's input for an image. Raises UserError, also for a bad prompt.

        data: the file's content; None for a file on disk or a row of a table.
        """
        image, takes_prompt = load_image(name, data), self.preprocessing.takes_prompt
        if prompt and not takes_prompt:
            try:
                prompt_ids(self.captioner, prompt, "max_length", self.config.max_length)
            except UserError as error:
                raise UserError(f"{name}: {error}") from None
        return apply_transform(self.preprocessing.evaluation, image, name, prompt, takes_prompt)

    def prefetch(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        """Return the batches unchanged. `ServedModel` submits its requests here."""
        return batches

    def captions(self, batch: Batch) -> list[list[dict[str, Any]]]:
        """Return the captions of the images of a batch, see `caption_lists`. Raises UserError.

        Sampled captions depend on the seed, the unit, the offset and the batch size.
        """
        if batch.image is None:
            return []
        prompts = [entry.get("prompt") for entry in batch.entries if "error" not in entry]
        torch.manual_seed(derived_seed("caption", self.config.seed, batch.unit, batch.offset))
        images = batch.image.to(self.device, non_blocking=True)
        try:
            with self.precision.autocast():
                return caption_lists(self.generator, self.captioner, images, self.settings, prompts)
        except torch.OutOfMemoryError:
            raise UserError(
                f"out of GPU memory with {len(prompts)} images at once: lower eval_batch_size, "
                "num_beams or max_length"
            ) from None


def recorded_settings(settings: DecodingSettings, seed: int) -> dict[str, Any]:
    """Return {name: value} of the settings that have an effect, to record in output lines.

    The names are those of transformers' `generate` where it has such an argument.
    """
    values = dataclasses.asdict(settings)
    values["num_return_sequences"] = values.pop("num_return")
    unused = {"sample", "seeds", *(["num_beams"] if settings.sample else SAMPLING)}
    unused.update(n for n in OFF_BY_DEFAULT if values[n] == getattr(DecodingSettings, n))
    used = {name: value for name, value in values.items() if name not in unused}
    return {"do_sample": True, "seed": seed, **used} if settings.sample else used
