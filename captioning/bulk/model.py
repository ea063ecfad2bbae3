"""A checkpoint's captioner, ready for many images, and the lines that it writes of them."""

import dataclasses
from collections.abc import Iterable
from functools import partial
from typing import Any, Optional

import torch

from captioning.bulk.reading import Batch, transformed
from captioning.bulk.request import Request
from captioning.captioners.interface import Images
from captioning.data.randomness import derived_seed
from captioning.files.stores import without_secrets
from captioning.models.build import captioner_from, preprocessing_of, trained_config
from captioning.models.precision import Precision, check_precision
from captioning.runtime.errors import UserError
from captioning.runtime.progress import say
from decoding import DecodingSettings, Generated

DIGITS = 5  # of a score


class Captioning:
    """changes: configuration keys that differ from the checkpoint's. Raises UserError."""

    def __init__(
        self,
        checkpoint: str,
        config: Optional[str],
        changes: dict[str, Any],
        num_return: int,
        device: torch.device,
    ):
        self.config = trained_config(checkpoint, config, changes)
        check_precision(self.config, device)
        try:
            settings = self.config.decoding_settings()
            self.settings = dataclasses.replace(settings, num_return=num_return)
        except ValueError as error:
            raise UserError(str(error)) from error
        captioner, self.report = captioner_from(self.config, checkpoint)
        self.precision = Precision(self.config.precision, device)
        captioner = captioner.to(device)
        self.captioner = captioner.for_inference(self.precision.dtype, self.config.compile)
        self.device = device
        self.batch_size = self.config.eval_batch_size or self.config.batch_size
        self.at_once = self.batch_size  # fewer once memory has run out
        self.num_workers = self.config.num_workers
        made = preprocessing_of(self.config)
        self.read, self.join = partial(transformed, made.evaluation), made.join
        told = named_as_transformers_does(self.settings, self.config.seed)
        told["precision"] = self.config.precision
        self.origin = {"checkpoint": without_secrets(checkpoint), "settings": told}

    def ahead(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        """The batches; a captioner elsewhere (`Served`) begins with some before their turn."""
        return batches

    def lines(self, batch: Batch, after: int, job: Request) -> list[dict[str, Any]]:
        """A line for each entry of a batch, failed or captioned, `after` so many of its shard.

        Sampled captions depend on the seed and the place of the batch alone, or of the piece of
        it that memory had room for.
        """
        drawn = iter(self._captions(batch.image, (batch.shard, after)))
        lines = []
        for entry in batch.entries:
            captions, scores = (None, None) if "error" in entry else next(drawn)
            lines.append(line_of(entry, captions, scores, job, self.origin))
        return lines

    def _captions(
        self, image: Optional[Images], place: tuple[int, int]
    ) -> list[tuple[list[str], list[float]]]:
        """Captions and scores of each image, from the `place` in a shard on."""
        shard, after = place
        found: list[tuple[list[str], list[float]]] = []
        while image is not None and len(found) < len(image):
            piece = image[len(found) : len(found) + self.at_once]
            torch.manual_seed(derived_seed("caption", self.config.seed, shard, after + len(found)))
            made = self._generated(piece)
            if made is None:
                self._take_fewer(len(piece))
                continue
            scores = [[round(score, DIGITS) for score in row] for row in made.scores.tolist()]
            found += zip(made.captions, scores)
        return found

    def _generated(self, image: Images) -> Optional[Generated]:
        """None where memory has run out; nothing of the attempt is held then."""
        try:
            with self.precision.autocast():
                image = image.to(self.device, non_blocking=True)
                return self.captioner.generate_details(image, self.settings)
        except torch.OutOfMemoryError:
            return None

    def _take_fewer(self, images: int) -> None:
        """From now on half of so many at once. Raises UserError where that was one."""
        if images == 1:
            raise UserError(
                "out of GPU memory with a single image; lower --num_beams or --max_length, or use "
                "another device"
            )
        self.at_once = images // 2
        say(f"out of GPU memory with {images} images at once; from now on {self.at_once}")
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def line_of(
    entry: dict[str, Any],
    captions: Optional[list[str]],
    scores: Optional[list[float]],
    job: Request,
    origin: dict[str, Any],
) -> dict[str, Any]:
    """The line of an entry, which has an "error" or captions, these with scores or without.

    origin: of the captions, for the end of the line.
    """
    known = {key: entry[key] for key in ("image", "image_id") if key in entry}
    if "error" in entry:
        return {**known, "error": entry["error"]}
    captions = [job.prefix + caption + job.suffix for caption in captions]
    captions = job.joined(entry.get("old", []), captions)
    line = {**known, "caption": captions[0]}
    if len(captions) > 1:
        line["captions"] = captions
    if scores:
        line["score"] = scores[0]
    if scores and len(scores) > 1:
        line["scores"] = scores
    return {**line, **origin}


# Told where they are on.
OFTEN_OFF = ("no_repeat_ngram_size", "num_beam_groups", "diversity_penalty", "min_p", "typical_p")


def named_as_transformers_does(settings: DecodingSettings, seed: int) -> dict[str, Any]:
    """Those settings that have an effect, under the names of transformers' `generate`."""
    values = dataclasses.asdict(settings)
    drawn = values.pop("sample")
    values["num_return_sequences"] = values.pop("num_return")
    without = ("num_beams",) if drawn else ("top_p", "top_k", "temperature", "min_p", "typical_p")
    off = {name for name in OFTEN_OFF if values[name] == getattr(DecodingSettings, name)}
    kept = {name: value for name, value in values.items() if name not in {*without, *off}}
    return {"do_sample": True, "seed": seed, **kept} if drawn else kept
