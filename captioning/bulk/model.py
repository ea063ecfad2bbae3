"""Captions the batches of bulk captioning with a checkpoint, and makes the output lines."""

import dataclasses
from collections.abc import Iterable
from typing import Any, BinaryIO, Optional, Union

import torch

from captioning.bulk.work import Batch
from captioning.data.image import apply_transform, load_image
from captioning.data.randomness import derived_seed
from captioning.files.stores import without_secrets
from captioning.models.build import captioner_from, preprocessing_of, trained_config
from captioning.models.precision import Precision, check_precision
from captioning.models.prompts import caption_lists, prompt_ids
from captioning.models.reranking import Reranker, load_model
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

    - config: a YAML file, for a checkpoint without a configuration
    - changes: {key: value} that replace values of the configuration
    - num_return: captions per image

    A `Worker` uses `read` and `collate`, which make a batch of image files, `batch_size`,
    `num_workers`, `prefetch`, `lines` and `filter`, an `ItmFilter` or None. report: a log line that
    says what was loaded. origin: {"checkpoint", "settings"}, which each line records. The
    constructor raises UserError.
    """

    filter = None

    def __init__(
        self,
        checkpoint: str,
        config: Optional[str],
        changes: dict[str, Any],
        num_return: int,
        device: torch.device,
    ):
        run = self.config = trained_config(checkpoint, config, changes)
        for name in changes:
            if name in SAMPLING and not (run.sample or run.rerank):
                raise UserError(f"{name} has no effect without sample=true")
            if name in RERANKING and not run.rerank:
                raise UserError(f"{name} has no effect without rerank")
        check_precision(run, device)
        with value_errors_as_user_errors():
            settings, reranking = run.decoding_settings(), run.reranking()
            if reranking is None:
                used = settings = dataclasses.replace(settings, num_return=num_return)
            else:
                reranking = dataclasses.replace(reranking, num_return=num_return)
                used = reranking.candidate_settings(settings)
        load_model(reranking, device)
        captioner, self.report = captioner_from(run, checkpoint)
        self.precision = Precision(run.precision, device)
        self.captioner = captioner.to(device).for_inference(self.precision.dtype, run.compile)
        self.generator = self.captioner
        if reranking is not None:
            self.generator = Reranker(self.captioner, reranking, device)
        self.settings, self.device, self.num_workers = settings, device, run.num_workers
        self.batch_size = run.eval_batch_size or run.batch_size
        self.preprocessing = preprocessing_of(run)
        self.collate = self.preprocessing.collate
        recorded = {**recorded_settings(used, run.seed), "precision": run.precision}
        if reranking is not None:
            recorded.update(reranking.recorded_settings())
            if reranking.model:
                recorded["rerank_model"] = without_secrets(reranking.model)
        self.origin = {"checkpoint": without_secrets(checkpoint), "settings": recorded}

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

    def lines(self, batch: Batch) -> list[dict[str, Any]]:
        """Return a line for each entry of a batch, with captions or an error. Raises UserError.

        Sampled captions depend on the seed, the unit, the offset and the batch size.
        """
        captions = []
        if batch.image is not None:
            prompts = [entry.get("prompt") for entry in batch.entries if "error" not in entry]
            seed = derived_seed("caption", self.config.seed, batch.unit, batch.offset)
            torch.manual_seed(seed)
            given = (batch.image.to(self.device, non_blocking=True), self.settings, prompts)
            try:
                with self.precision.autocast():
                    captions = caption_lists(self.generator, self.captioner, *given)
            except torch.OutOfMemoryError:
                raise UserError(
                    f"out of GPU memory with {len(prompts)} images at once: lower eval_batch_size, "
                    "num_beams or max_length"
                ) from None
        return output_lines(batch.entries, captions, self.origin)


def output_lines(
    entries: Iterable[dict[str, Any]],
    answers: Iterable[Union[list[dict[str, Any]], str]],
    origin: dict[str, Any],
) -> list[dict[str, Any]]:
    """Return the line of each entry: its "error", or its captions and their scores.

    - answers: of each entry without an "error": its captions, or why it has none. Captions are
      {"caption": text, name of a score: value}, the best first. With several, the line also has the
      lists of all values under plural keys, such as "captions" and "scores"
    - origin: {"checkpoint", "settings"}, which a line with captions ends with
    """
    answers, lines = iter(answers), []
    for entry in entries:
        line = {key: entry[key] for key in ("image", "image_id", "prompt") if key in entry}
        answer = entry.get("error") or next(answers)
        if isinstance(answer, str):
            lines.append({**line, "error": answer})
            continue
        for name in answer[0]:
            values = [caption[name] for caption in answer]
            line[name] = values[0]
            if len(values) > 1:
                line[f"{name}s"] = values
        lines.append({**line, **origin})
    return lines


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
