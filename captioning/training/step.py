"""One optimiser step: forward and backward on accumulated batches, check, update."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from captioning.config import Config
from captioning.data.loader import Batch
from captioning.data.randomness import derived_seed
from captioning.models.precision import Precision
from captioning.runtime import distributed, signals
from captioning.training.nonfinite_report import BatchReport, NotFiniteError, what_is_not_finite
from captioning.training.optimiser import clip_gradients
from captioning.training.sharding import begin_step
from smile import ObjectiveOutput

# Summed over batches; all other values are means over tokens.
COUNTED = ("skipped_images", "stop_requested")


class Stepped(NamedTuple):
    """sums: over all batches and ranks, by name: tokens, the loss and its parts times tokens,
    COUNTED. values: what else is logged of the step."""

    sums: dict[str, float]
    values: dict[str, float]


class TrainingStep:
    """Trains `model`, the learner or its DistributedDataParallel, on accumulated batches.

    learner: the captioner, or its `SelfCritical`. batches: reports of the last step's batches.
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
        self.batches: list[BatchReport] = []

    def __call__(self, batches: Iterator[Batch], step: int) -> Stepped:
        """Take the batches of one step, the `step`th of the run from 0 on.

        Every labelled token has the same weight, whichever batch or process it is in: the mean of a
        batch is weighted by its tokens over all processes, relative to the first batch that has
        any, and the gradient is corrected at the end where there were further batches. Raises
        NotFiniteError on all ranks, with weights and buffers as before the step.
        """
        self.batches = []
        buffers = list(self.learner.buffers())  # BatchNorm's statistics, an objective's window
        before = [buffer.clone() for buffer in buffers]
        if self.model is self.learner:
            begin_step(self.learner)
        totals: list[Tensor] = []  # of each batch, over all ranks
        reference = torch.zeros((), dtype=torch.float64, device=self.precision.device)
        for number in range(self.count):
            batch = next(batches)
            with self._gradient_sync(number):
                output = self._forward(batch, step * self.count + number)
                totals.append(distributed.sum_over_ranks(self._sums(output, batch)))
                reference = reference.where(reference > 0, totals[-1][0])
                # The kernel queue of a GPU is limited: this may block until other ranks catch up.
                with distributed.waits_for_others():
                    self._backward(output, reference)
        with distributed.waits_for_others():
            norm = self._reduced_gradient(totals, reference)
            # The only synchronisation with a GPU, except where the objective reads the labels. All
            # that is logged and decided is copied at once.
            *values, norm = torch.cat([*totals, norm.double()[None]]).tolist()
        names = ["tokens", *self.batches[-1].parts, *COUNTED]
        width = len(names)
        sums = [dict(zip(names, values[i : i + width])) for i in range(0, len(values), width)]
        problem = what_is_not_finite(sums, norm, self.scaler)
        if problem:
            for buffer, value in zip(buffers, before):
                buffer.copy_(value)
            raise NotFiniteError(problem)
        self._apply()
        whole = {name: sum(of_batch[name] for of_batch in sums) for name in names}
        return Stepped(whole, {"grad_norm": norm})

    def _gradient_sync(self, number: int):
        """Ranks sum their gradients at the last batch only."""
        alone = self.model is self.learner
        return nullcontext() if alone or number == self.count - 1 else self.model.no_sync()

    def _forward(self, batch: Batch, number: int) -> ObjectiveOutput:
        """Dropout and sampling depend on the batch's number and the rank alone."""
        torch.manual_seed(derived_seed("step", self.config.seed, number, distributed.rank()))
        inputs: list[Any] = [batch["image"], batch["captions"]]
        if self.config.reward:
            inputs.append(batch["image_id"])
        if self.config.drop_image:
            dropped = torch.tensor(batch["dropped"])
            inputs.append(dropped.to(self.precision.device, non_blocking=True))
        with self.precision.autocast():
            output = self.model(*inputs)
        parts = {"loss": output.loss.detach(), **output.parts}
        self.batches.append(BatchReport(batch["image_id"], parts))
        return output

    def _sums(self, output: ObjectiveOutput, batch: Batch) -> Tensor:
        """This rank's sums of the last batch, float64 (n,), in the order of their names."""
        parts = self.batches[-1].parts
        means = torch.stack([torch.ones_like(parts["loss"]), *parts.values()]).double()
        counted = torch.tensor([batch["skipped"], bool(signals.stop_requested())]).double()
        counted = counted.to(self.precision.device, non_blocking=True)
        return torch.cat([means * output.tokens, counted])

    def _backward(self, output: ObjectiveOutput, reference: Tensor) -> None:
        weight = output.tokens * distributed.world_size() / reference.clamp(min=1)
        self.scaler.scale(output.loss * weight.float()).backward()

    def _reduced_gradient(self, totals: list[Tensor], reference: Tensor) -> Tensor:
        """Make the gradient that of the mean over all tokens, and clip it; its norm before."""
        self.scaler.unscale_(self.optimizer)
        correction = reference / sum(totals)[0].clamp(min=1) if self.count > 1 else None
        return clip_gradients(self.optimizer, self.config, correction)

    def _apply(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
