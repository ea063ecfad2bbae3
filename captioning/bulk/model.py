"""A checkpoint's captioner, ready for many images, and the lines that it writes of them."""

import dataclasses
from typing import Any, Optional

import torch
from torch import Tensor

from captioning.bulk.reading import Batch
from captioning.bulk.request import Request
from captioning.data.randomness import derived_seed
from captioning.models.build import captioner_from, preprocessing_of, trained_config
from captioning.models.precision import Precision, check_precision
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from decoding import DecodingSettings

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
        with distributed.first_on_each_machine():
            captioner, self.report = captioner_from(self.config, checkpoint)
        self.precision = Precision(self.config.precision, device)
        captioner = captioner.to(device)
        self.captioner = captioner.for_inference(self.precision.dtype, self.config.compile)
        self.device = device
        self.batch_size = self.config.eval_batch_size or self.config.batch_size
        self.transform = preprocessing_of(self.config).evaluation
        told = named_as_transformers_does(self.settings, self.config.seed)
        told["precision"] = self.config.precision
        self.origin = {"checkpoint": checkpoint, "settings": told}

    def lines(self, batch: Batch, after: int, job: Request) -> list[dict[str, Any]]:
        """A line for each entry of a batch, failed or captioned, `after` so many of its shard.

        Sampled captions depend on the seed and the place of the batch alone.
        """
        drawn = iter(self._captions(batch.image, (batch.shard, after)))
        lines = []
        for entry in batch.entries:
            known = {key: entry[key] for key in ("image", "image_id") if key in entry}
            if "error" in entry:
                lines.append({**known, "error": entry["error"]})
                continue
            captions, scores = next(drawn)
            captions = [job.prefix + caption + job.suffix for caption in captions]
            captions = job.joined(entry.get("old", []), captions)
            line = {**known, "caption": captions[0]}
            if len(captions) > 1:
                line["captions"] = captions
            line["score"] = scores[0]
            if len(scores) > 1:
                line["scores"] = scores
            lines.append({**line, **self.origin})
        return lines

    def _captions(
        self, image: Optional[Tensor], place: tuple[int, int]
    ) -> list[tuple[list[str], list[float]]]:
        if image is None:
            return []
        torch.manual_seed(derived_seed("caption", self.config.seed, *place))
        image = image.to(self.device, non_blocking=True)
        try:
            with self.precision.autocast():
                found = self.captioner.generate_details(image, self.settings)
        except torch.OutOfMemoryError:
            size = self.batch_size
            raise UserError(f"out of GPU memory: lower --batch_size, which is {size}") from None
        scores = [[round(score, DIGITS) for score in row] for row in found.scores.tolist()]
        return list(zip(found.captions, scores))


def named_as_transformers_does(settings: DecodingSettings, seed: int) -> dict[str, Any]:
    """Those settings that have an effect, under the names of transformers' `generate`."""
    values = dataclasses.asdict(settings)
    drawn = values.pop("sample")
    values["num_return_sequences"] = values.pop("num_return")
    without = ("num_beams",) if drawn else ("top_p", "top_k", "temperature")
    kept = {name: value for name, value in values.items() if name not in without}
    return {"do_sample": True, "seed": seed, **kept} if drawn else kept
