"""Takes one optimizer step: forward and backward on accumulated batches, a check, the update."""

import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn

from captioning.config import Config
from captioning.data.loader import Batch
from captioning.data.randomness import derived_seed
from captioning.models.precision import Precision
from captioning.runtime import distributed, signals
from captioning.training.schedule import clip_gradients
from smile import ObjectiveOutput

# These values are counts, which are summed over batches, in the order of `TrainingStep._sums`. All
# other values are means over tokens.
COUNTS = ("skipped_images", "stop_requested")
TOKENS = 0  # the index of the number of tokens in `TrainingStep._sums`
# The lowest loss scale. A gradient that overflows at this scale is an error.
MIN_SCALE = 1.0
MAX_SHOWN = 8  # the most image ids and batches in an error message


class NotFiniteError(Exception):
    """Raised on all ranks by a step that is not finite, before the weights change.

    Its text names what is not finite, the step, the images and what to change.
    """


class StepResult(NamedTuple):
    """The values of a step, for the log.

    - sums: {name: sum over all batches and ranks}. "tokens" is the number of tokens. "loss" and
      each part of the loss are multiplied by the number of tokens before summing. COUNTS are counts
    - values: values that need no averaging, {"grad_norm": norm before clipping}
    """

    sums: dict[str, float]
    values: dict[str, float]


class TrainingStep:
    """Trains a model on accumulated batches.

    - model: the learner, or the DistributedDataParallel that wraps the learner
    - learner: the captioner, or the `SelfCritical` that wraps the captioner
    - batches: (image ids, parts of the loss by name) of each batch of the latest step on this rank
    """

    def __init__(
        self,
        config: Config,
        model: nn.Module,
        learner: nn.Module,
        optimizer: torch.optim.Optimizer,
        precision: Precision,
    ):
        self.config, self.model, self.learner = config, model, learner
        self.optimizer, self.precision, self.scaler = optimizer, precision, precision.scaler
        self.batch_count = config.accumulation_steps
        self.batches: list[tuple[list, dict[str, Tensor]]] = []

    def __call__(self, batches: Iterator[Batch], step: int) -> StepResult:
        """Train on the batches of one step. step: the step's number in the run, from 0.

        If the loss or the gradient is not finite, raises NotFiniteError on all ranks, and leaves
        weights and buffers unchanged.
        """
        self.batches = []
        # The buffers are statistics of batch norms and the state of objectives.
        saved_buffers = [(buffer, buffer.clone()) for buffer in self.learner.buffers()]
        if self.model is self.learner:
            # DistributedDataParallel would broadcast the buffers itself.
            distributed.broadcast_buffers(self.learner)
        totals, reference = self._accumulate_gradients(batches, step)
        self.scaler.unscale_(self.optimizer)
        correction = None
        if self.batch_count > 1:
            correction = reference / sum(totals)[TOKENS].clamp(min=1)
        norm = clip_gradients(self.optimizer, self.config, correction)
        names = ["tokens", *self.batches[-1][1], *COUNTS]
        # Only here does the step wait for the GPU, unless the objective reads the labels.
        sums = [dict(zip(names, values)) for values in torch.stack(totals).tolist()]
        norm = norm.item()
        if part := self._nonfinite_part(sums, norm):
            for buffer, value in saved_buffers:
                buffer.copy_(value)
            raise self._nonfinite_error(part, step + 1)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        summed = {name: sum(batch_sums[name] for batch_sums in sums) for name in names}
        return StepResult(summed, {"grad_norm": norm})

    def _nonfinite_part(self, batches: list[dict[str, float]], norm: float) -> str:
        """Return which of "reward", "loss" and "gradient" is not finite; "" if there is no error.

        With float16, a gradient that overflows is no error as long as the loss scale is above
        MIN_SCALE: the scaler skips the step and lowers the loss scale. batches: for each batch
        {name: sum over all ranks}. norm: the gradient's norm.
        """
        if not all(math.isfinite(value) for sums in batches for value in sums.values()):
            return "loss" if all(math.isfinite(s.get("reward", 0)) for s in batches) else "reward"
        overflows = self.scaler.is_enabled() and self.scaler.get_scale() > MIN_SCALE
        return "" if math.isfinite(norm) or overflows else "gradient"

    def _nonfinite_error(self, part: str, step: int) -> NotFiniteError:
        """Return the error for a step, the same on all ranks. All ranks call this.

        part: from `_nonfinite_part`. step: the step's number in the run, from 1.
        """
        # Name the images of the batches that are not finite. If every batch is finite, as when only
        # the gradient is not, name the images of all batches.
        label = f"rank {distributed.rank()} had images"
        reports = [
            (all(value.isfinite() for value in parts.values()), f"{label} {ids[:MAX_SHOWN]}")
            for ids, parts in self.batches
        ]
        reports = [*chain.from_iterable(distributed.gather_on_main(reports) or ())]
        failed = [text for finite, text in reports if not finite] or [text for _, text in reports]
        images = "; ".join(failed[:MAX_SHOWN])
        advice = "lower init_lr, set clip_grad_norm, or use another precision than "
        advice += self.config.precision
        if part == "reward":
            advice = f"remove a term from the key reward, which is {self.config.reward}"
        text = f"the {part} is not finite at step {step} ({images}); {advice}"
        return NotFiniteError(distributed.broadcast_from_main(text))

    def _accumulate_gradients(
        self, batches: Iterator[Batch], step: int
    ) -> tuple[list[Tensor], Tensor]:
        """Run forward and backward on the batches of a step. Return the totals and the reference.

        totals: for each batch, `_sums` summed over all ranks. reference: the number of tokens, on
        all ranks, of the first batch that has any; a scalar.

        The loss of a step is a mean over the labelled tokens of all batches and ranks. The total
        number of tokens is only known after the last batch. Therefore:

        - On each rank, the loss of a batch is multiplied by (tokens of the batch) / reference, and
          by the number of ranks, because DistributedDataParallel averages gradients over ranks
        - After the last batch, the caller multiplies the gradient by
          reference / (tokens of all batches)
        """
        totals = []
        reference = torch.zeros((), dtype=torch.float64, device=self.precision.device)
        for index in range(self.batch_count):
            batch = next(batches)
            # DistributedDataParallel exchanges gradients only with the last batch of a step.
            is_last = index == self.batch_count - 1 or self.model is self.learner
            with nullcontext() if is_last else self.model.no_sync():
                output = self._forward(batch, step * self.batch_count + index)
                totals.append(distributed.sum_over_ranks(self._sums(output, batch)))
                reference = reference.where(reference > 0, totals[-1][TOKENS])
                weight = output.tokens * distributed.world_size() / reference.clamp(min=1)
                self.scaler.scale(output.loss * weight.float()).backward()
        return totals, reference

    def _forward(self, batch: Batch, number: int) -> ObjectiveOutput:
        """Run the model on a batch. number: the batch's number in the run, from 0.

        Dropout and sampling depend only on the run's seed, `number` and the rank.
        """
        torch.manual_seed(derived_seed("step", self.config.seed, number, distributed.rank()))
        image = batch["image"]
        if self.config.drop_image:  # zeros: the null image, see `Captioner.encode_null`
            dropped = torch.tensor(batch["dropped"]).view(-1, 1, 1, 1)
            image = image.masked_fill(dropped.to(image.device, non_blocking=True), 0)
        inputs = [image, batch["captions"]]
        if self.config.reward:
            inputs.append(batch["image_id"])
        prompts = {"prompts": batch["prompt"]} if any(batch["prompt"]) else {}
        with self.precision.autocast():
            output = self.model(*inputs, **prompts)
        parts = {"loss": output.loss.detach(), **output.parts}
        self.batches.append((batch["image_id"], parts))
        return output

    def _sums(self, output: ObjectiveOutput, batch: Batch) -> Tensor:
        """Return the sums of the latest batch on this rank, float64 (n,).

        The sums are, in this order: the number of tokens; the loss and the parts of the loss, each
        multiplied by the number of tokens; and COUNTS.
        """
        _, parts = self.batches[-1]
        means = torch.stack([torch.ones_like(parts["loss"]), *parts.values()]).double()
        counts = torch.tensor([batch["skipped"], bool(signals.stop_requested())]).double()
        counts = counts.to(self.precision.device, non_blocking=True)
        return torch.cat([means * output.tokens, counts])


def token_means(sums: Mapping[str, float]) -> dict[str, float]:
    """Return means per token: each sum divided by sums["tokens"], without "tokens" and COUNTS."""
    tokens = max(sums["tokens"], 1)
    return {n: total / tokens for n, total in sums.items() if n not in ("tokens", *COUNTS)}
