"""Captions the batches of bulk captioning with a checkpoint, and makes the output lines."""

import dataclasses
from collections.abc import Iterable
from functools import partial
from typing import Any, BinaryIO, Callable, Optional

import torch

from captioning.bulk.work import Batch
from captioning.captioners.interface import Images
from captioning.data.image import apply_transform, load_image
from captioning.data.randomness import derived_seed
from captioning.files.stores import without_secrets
from captioning.models.build import captioner_from, preprocessing_of, trained_config
from captioning.models.precision import Precision, check_precision
from captioning.models.prompts import caption_lists, prompt_ids
from captioning.models.reranking import Reranker, load_model
from captioning.runtime.errors import UserError, value_errors_as_user_errors
from captioning.runtime.progress import log_line
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
    `num_workers`, `prefetch` and `lines`. report: a log line that says what was loaded. origin:
    {"checkpoint", "settings"}, which each line records. The constructor raises UserError.
    """

    def __init__(
        self,
        checkpoint: str,
        config: Optional[str],
        changes: dict[str, Any],
        num_return: int,
        device: torch.device,
    ):
        run = self.config = trained_config(checkpoint, config, changes)
        needs = {
            "sample=true": (SAMPLING, run.sample or run.rerank),
            "rerank": (RERANKING, run.rerank),
        }
        for key, (names, is_enabled) in needs.items():
            unused = next((name for name in names if name in changes), None)
            if unused and not is_enabled:
                raise UserError(f"{unused} has no effect without {key}")
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
        self.settings, self.device = settings, device
        self.batch_size = run.eval_batch_size or run.batch_size
        self.generated_at_once = self.batch_size  # in images; lowered when GPU memory runs out
        self.num_workers = run.num_workers
        preprocessing = preprocessing_of(run)
        self.collate, self.takes_prompt = preprocessing.collate, preprocessing.takes_prompt
        self.read = partial(_read, preprocessing.evaluation, self.takes_prompt)
        recorded = {**recorded_settings(used, run.seed), "precision": run.precision}
        if reranking is not None:
            recorded.update(reranking.recorded_settings())
            if reranking.model:
                recorded["rerank_model"] = without_secrets(reranking.model)
        self.origin = {"checkpoint": without_secrets(checkpoint), "settings": recorded}

    def prefetch(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        """Return the batches unchanged. `ServedModel` submits its requests here."""
        return batches

    def lines(self, batch: Batch) -> list[dict[str, Any]]:
        """Return a line for each entry of a batch, with captions or an error.

        Sampled captions depend on the seed, the unit, the offset and the batch size. If GPU memory
        runs out, fewer images are captioned at once, so that sampled captions change.
        """
        entries = [self._with_checked_prompt(entry) for entry in batch.entries]
        read = [checked for checked, entry in zip(entries, batch.entries) if "error" not in entry]
        rows = [row for row, entry in enumerate(read) if "error" not in entry]
        images = batch.image if len(rows) == len(read) else batch.image[rows] if rows else None
        generated = iter(self._captions(images, [read[row].get("prompt") for row in rows], batch))
        return [
            line_of(entry, [] if "error" in entry else next(generated), self.origin)
            for entry in entries
        ]

    def _with_checked_prompt(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Return the entry, with an "error" if its prompt cannot be used."""
        try:
            if "error" not in entry and entry.get("prompt") and not self.takes_prompt:
                prompt_ids(self.captioner, entry["prompt"], "max_length", self.config.max_length)
        except UserError as error:
            return {**entry, "error": f"{entry['image']}: {error}"}
        return entry

    def _captions(
        self, images: Optional[Images], prompts: list[Optional[str]], batch: Batch
    ) -> list[list[dict[str, Any]]]:
        """Return the captions of each image with their scores, for `line_of`.

        prompts: each image's own prompt, or None.
        """
        captions = []
        while images is not None and len(captions) < len(images):
            first, end = len(captions), len(captions) + self.generated_at_once
            seed = derived_seed("caption", self.config.seed, batch.unit, batch.offset + first)
            torch.manual_seed(seed)
            piece = images[first:end]
            generated = self._generate(piece, None if self.takes_prompt else prompts[first:end])
            if generated is None:
                self._lower_generated_at_once(len(piece))
            else:
                captions += generated
        return captions

    def _generate(self, images: Images, prompts: Optional[list]) -> Optional[list]:
        """Return the captions of each image; None if GPU memory runs out.

        It does not raise, because a traceback would keep the failed attempt's tensors in memory.
        """
        try:
            with self.precision.autocast():
                images = images.to(self.device, non_blocking=True)
                return caption_lists(self.generator, self.captioner, images, self.settings, prompts)
        except torch.OutOfMemoryError:
            return None

    def _lower_generated_at_once(self, count: int) -> None:
        """Set `generated_at_once` to half of the `count` images that did not fit.

        Raises UserError if a single image did not fit.
        """
        if count == 1:
            raise UserError(
                "out of GPU memory with a single image; lower num_beams or max_length, or use "
                "another device"
            )
        self.generated_at_once = count // 2
        log_line(
            f"out of GPU memory with {count} images at once; from now on {self.generated_at_once}"
        )
        torch.cuda.empty_cache()


def _read(
    transform: Callable,
    takes_prompt: bool,
    name: str,
    data: Optional[BinaryIO],
    prompt: Optional[str],
) -> Any:
    """Return the captioner's input for an image; see `work.Batch`. Raises UserError.

    - transform, takes_prompt: from `Preprocessing`
    - data: the file's content; None for a file
    """
    return apply_transform(transform, load_image(name, data), name, prompt, takes_prompt)


def line_of(
    entry: dict[str, Any], captions: list[dict[str, Any]], origin: dict[str, Any]
) -> dict[str, Any]:
    """Return the line of an entry: its "error", or its captions and their scores.

    captions: {"caption": text, name of a score: value} of each caption, the best first. With
    several captions the line also has the lists of all values under plural keys, such as "captions"
    and "scores". origin: {"checkpoint", "settings"}, which the line ends with.
    """
    line = {key: entry[key] for key in ("image", "image_id", "prompt") if key in entry}
    if "error" in entry:
        return {**line, "error": entry["error"]}
    for name in captions[0]:
        values = [caption[name] for caption in captions]
        line[name] = values[0]
        if len(values) > 1:
            line[f"{name}s"] = values
    return {**line, **origin}


def recorded_settings(settings: DecodingSettings, seed: int) -> dict[str, Any]:
    """Return {name: value} of the settings that have an effect, to record in output lines.

    The names are those of transformers' `generate` where it has such an argument.
    """
    values = dataclasses.asdict(settings)
    sample = values.pop("sample")
    values.pop("seeds")
    values["num_return_sequences"] = values.pop("num_return")
    unused = {name for name in OFF_BY_DEFAULT if values[name] == getattr(DecodingSettings, name)}
    unused.update(["num_beams"] if sample else SAMPLING)
    used = {name: value for name, value in values.items() if name not in unused}
    return {"do_sample": True, "seed": seed, **used} if sample else used
