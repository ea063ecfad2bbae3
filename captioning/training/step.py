"""One optimiser step: forward and weigh, reduce, judge, apply."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from captioning.config import Config
from captioning.data.loader import Batch
from captioning.data.randomness import derived_seed
from captioning.models.precision import Precision
from captioning.runtime import distributed, signals
from captioning.training.nonfinite_report import KeptBatch, inputs_of, what_is_not_finite
from captioning.training.optimiser import clip_gradients
from captioning.training.sharding import begin_step
from smile import ObjectiveOutput

COUNTED = ("skipped_images", "asked_to_stop")  # what is summed over batches and not over tokens


class Stepped(NamedTuple):
    """sums: over all batches and ranks, by name: tokens, the loss and its parts times tokens,
    COUNTED; norm: of the gradient, before it was clipped."""

    sums: dict[str, float]
    norm: float


class NotFiniteError(Exception):
    """The "reward", "loss" or "gradient" is not finite, and the weights are as they were."""


class TrainingStep:
    """Trains `model`, the learner itself or that of several processes, on accumulated batches.

    learner: the captioner, or what draws captions of it for a reward.
    kept: what the batches of the last step were, for whoever has to explain it.
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
        self.count = config.accumulation_steps
        self.kept: list[KeptBatch] = []

    def __call__(self, batches: Iterator[Batch], step: int) -> Stepped:
        """Take so many batches and one step, the `step`th of the run from 0 on.

        Every labelled token counts alike, whichever batch or process it is in: the mean of a batch
        is weighted by its tokens, relative to those of the first batch on all processes that has
        any, and the gradient is put right at the end where there were further ones. Raises
        NotFiniteError on all ranks.
        """
        self.kept = []
        if self.model is self.learner:
            begin_step(self.learner)
        totals: list[Tensor] = []  # of each batch, over all ranks
        reference = torch.zeros((), dtype=torch.float64, device=self.precision.device)
        for number in range(self.count):
            batch = next(batches)
            with self._synchronised(number):
                output = self._forward(batch, step * self.count + number)
                totals.append(distributed.sum_over_ranks(self._weighed(output, batch)))
                reference = reference.where(reference > 0, totals[-1][0])
                # A GPU that waits for the others' sums is given only so many kernels in advance.
                with distributed.waits_for_others():
                    self._backward(output, reference)
        with distributed.waits_for_others():
            norm = self._reduced_gradient(totals, reference)
            # The host waits for a GPU here, for all that is said or decided of the step, and within
            # forward where the objective looks for the labels. What NCCL has to sum was only put
            # into its queue before.
            *values, norm = torch.cat([*totals, norm.double()[None]]).tolist()
        width = len(totals[0])
        sums = [values[i : i + width] for i in range(0, len(values), width)]
        names = ["tokens", *self.kept[-1].parts, *COUNTED]
        problem = what_is_not_finite(sums, norm, self.scaler, names)
        if problem:
            raise NotFiniteError(problem)
        self._apply()
        return Stepped(dict(zip(names, map(sum, zip(*sums)))), norm)

    def _synchronised(self, number: int):
        """Processes add their gradients at the last of the batches alone."""
        alone = self.model is self.learner
        return nullcontext() if alone or number == self.count - 1 else self.model.no_sync()

    def _forward(self, batch: Batch, number: int) -> ObjectiveOutput:
        """Dropout and all else that is random depend on the batch's number and the rank alone."""
        seed = derived_seed("step", self.config.seed, number, distributed.rank())
        torch.manual_seed(seed)
        with self.precision.autocast():
            output = self.model(*inputs_of(batch, self.config))
        sampled = self.learner.sampled if self.config.reward else None
        self.kept.append(KeptBatch.of(batch, seed, output, sampled))
        return output

    def _weighed(self, output: ObjectiveOutput, batch: Batch) -> Tensor:
        """This rank's sums of the batch that was kept last, float64 (n,)."""
        parts = self.kept[-1].parts
        means = torch.stack([torch.ones_like(parts["loss"]), *parts.values()]).double()
        counted = torch.tensor([batch["skipped"], bool(signals.stop_requested())]).double()
        counted = counted.to(self.precision.device, non_blocking=True)
        return torch.cat([means * output.tokens, counted])

    def _backward(self, output: ObjectiveOutput, reference: Tensor) -> None:
        weight = output.tokens * distributed.world_size() / reference.clamp(min=1)
        self.scaler.scale(output.loss * weight.float()).backward()

    def _reduced_gradient(self, totals: list[Tensor], reference: Tensor) -> Tensor:
        """Make the gradient that of the mean over all tokens, clipped; its norm before that."""
        self.scaler.unscale_(self.optimizer)
        correction = reference / sum(totals)[0].clamp(min=1) if self.count > 1 else None
        return clip_gradients(self.optimizer, self.config, correction)

    def _apply(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
