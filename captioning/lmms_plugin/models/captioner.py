"""Wraps the checkpoint of any captioner as a model for lmms-eval."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Optional

import torch
from lmms_eval.api.model import lmms
from lmms_eval.utils import Collator

from captioning.bulk.model import CheckpointModel
from captioning.data.image import decode
from captioning.models import checkpoints
from captioning.runtime import distributed
from captioning.runtime.errors import UserError, visible
from decoding import DecodingSettings

# Keys of a task's generation_kwargs that are also fields of DecodingSettings.
SHARED = ("num_beams", "temperature", "top_p", "top_k", "repetition_penalty")


class CheckpointLmm(lmms):
    """A captioner that answers every question about an image with a caption.

    The question is not used. lmms-eval passes the values of --model_args to the constructor.
    checkpoint, config: see captioning.caption. overrides: {configuration key: value}, which take
    precedence over the checkpoint's configuration and a task's generation_kwargs. An error of the
    user ends the program with one line.
    """

    def __init__(
        self,
        checkpoint: str,
        config: Optional[str] = None,
        batch_size: int = 1,
        device: Optional[str] = None,
        **overrides: Any,
    ):
        super().__init__()
        self.batch_size, self.overrides = int(batch_size), overrides
        try:
            if distributed.env_world_size() > 1:
                raise UserError("several processes are not supported here: start one")
            self.model = CheckpointModel(
                checkpoint=checkpoints.resolve(checkpoint),
                config=config,
                changes=overrides,
                num_return=1,
                device=distributed.start(device or "auto"),
            )
        except UserError as error:
            refuse(str(error))

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Return one caption for each request, cut off before the first of the stop strings."""
        try:
            return self._captions(requests)
        except (UserError, ValueError) as error:  # a photo or a setting that cannot be used
            refuse(str(error))

    def _captions(self, requests: Sequence[Any]) -> list[str]:
        preprocessing, answers = self.model.preprocessing, []
        # Requests with the same generation_kwargs share a batch.
        batches = Collator([request.args for request in requests], lambda _: 0, grouping=True)
        for batch in batches.get_batched(n=self.batch_size):
            images = [
                preprocessing.item(self.image(to_visual, number, task, split))
                for _, _, to_visual, number, task, split in batch
            ]
            generation_kwargs = batch[0][1]
            settings = self.settings(generation_kwargs)
            with torch.inference_mode(), self.model.precision.autocast():
                image_batch = preprocessing.collate(images).to(self.model.device)
                generated = self.model.generator.generate_details(image_batch, settings)
            stops = generation_kwargs.get("until") or ()
            for caption, *_ in generated.captions:
                for stop in [stops] if isinstance(stops, str) else stops:
                    caption = caption.partition(stop)[0] if stop else caption
                answers.append(caption)
        return batches.get_original(answers)

    def image(self, to_visual: Any, number: int, task: str, split: str) -> Any:
        """Return the RGB image of a task's document.

        to_visual: lmms-eval's function that returns the images of a document. number: the
        document's index in the split.
        """
        visuals = to_visual(self.task_dict[task][split][number])
        if len(visuals) != 1 or not hasattr(visuals[0], "convert"):
            refuse(
                f"{task}: document {number} does not have exactly one image, as a captioner needs"
            )
        return decode(visuals[0], f"{task}: document {number}")

    def settings(self, kwargs: Mapping[str, Any]) -> DecodingSettings:
        """Return the decoding settings for a task. kwargs: the task's generation_kwargs."""
        given = {name: value for name, value in kwargs.items() if value is not None}
        # Tasks without sampling have temperature 0 and top_p 0, which `DecodingSettings` refuses.
        changes = {n: given[n] for n in SHARED if n in given and (given[n] or n == "top_k")}
        if given.keys() & {"do_sample", "temperature"}:
            changes["sample"] = bool(given.get("do_sample", True)) and given.get("temperature") != 0
        captioner, run_settings = self.model.captioner, self.model.settings
        if kwargs.get("max_new_tokens"):  # excludes the prompt; max_length includes it
            max_length = len(captioner.prompt_ids) + kwargs["max_new_tokens"]
            if captioner.max_positions:
                max_length = min(max_length, captioner.max_positions)
            min_length = min(run_settings.min_length, max_length)
            changes.update(max_length=max_length, min_length=min_length)
        try:
            kept = {name: value for name, value in changes.items() if name not in self.overrides}
            return dataclasses.replace(run_settings, **kept)
        except ValueError as error:
            refuse(str(error))

    def loglikelihood(self, requests: Sequence[Any]) -> NoReturn:
        refuse("a captioner generates one answer: choose tasks with output_type generate_until")

    generate_until_multi_round = loglikelihood


def refuse(reason: str) -> NoReturn:
    """End the program with one line; lmms-eval would print the traceback of an exception."""
    raise SystemExit(visible(f"error: {reason}"))
