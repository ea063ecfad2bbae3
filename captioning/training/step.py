"""One optimiser step: forward and backward on accumulated batches, a check, the update."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from captioning.config import Config
from captioning.data.loader import Batch
from captioning.data.randomness import derived_seed
from captioning.models.precision import Precision
from captioning.models.prompts import prompt_is_question
from captioning.runtime import distributed, signals
from captioning.training.nonfinite_report import BatchReport, NotFiniteError, nonfinite_part
from captioning.training.optimiser import clip_gradients
from smile import ObjectiveOutput

# These values are summed over batches. All others are means over tokens.
COUNTS = ("skipped_images", "stop_requested")


class StepResult(NamedTuple):
    """The values of a step.

    sums: over all batches and ranks: the tokens, the loss and its parts times the tokens, and
    COUNTS. values: other values for the log.
    """

    sums: dict[str, float]
    values: dict[str, float]


class TrainingStep:
    """Trains a model on accumulated batches.

    learner: the captioner, or the `SelfCritical` around it. model: the learner, or the
    DistributedDataParallel around it. batches: reports of the last step's batches.
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
        self.batches: list[BatchReport] = []

    def __call__(self, batches: Iterator[Batch], step: int) -> StepResult:
        """Train on the batches of one step. step: its number in the run, from 0.

        The loss is a mean over the labelled tokens of all batches and processes. Their number is
        known only after the last batch. Therefore a batch's loss is weighted by its tokens / tokens
        of the first batch that has any (`reference`), and the gradient is multiplied by reference /
        all tokens, then clipped. Raises NotFiniteError on all ranks and leaves weights and buffers
        unchanged.
        """
        self.batches = []
        buffers = list(self.learner.buffers())  # statistics of batch norms, state of objectives
        saved_buffers = [buffer.clone() for buffer in buffers]
        if self.model is self.learner:
            distributed.broadcast_buffers(self.learner)  # DistributedDataParallel does it itself
        totals: list[Tensor] = []  # (n,) of each batch: `_sums` over all ranks
        reference = torch.zeros((), dtype=torch.float64, device=self.precision.device)
        for index in range(self.batch_count):
            batch = next(batches)
            # Ranks exchange gradients once a step, with the last batch.
            is_last = index == self.batch_count - 1 or self.model is self.learner
            with nullcontext() if is_last else self.model.no_sync():
                output = self._forward(batch, step * self.batch_count + index)
                totals.append(distributed.sum_over_ranks(self._sums(output, batch)))
                reference = reference.where(reference > 0, totals[-1][0])
                weight = output.tokens * distributed.world_size() / reference.clamp(min=1)
                self.scaler.scale(output.loss * weight.float()).backward()
        self.scaler.unscale_(self.optimizer)
        correction = reference / sum(totals)[0].clamp(min=1) if self.batch_count > 1 else None
        norm = clip_gradients(self.optimizer, self.config, correction)
        # One copy of all values from the GPU: the step's only synchronisation, unless the objective
        # reads the labels.
        *values, norm = torch.cat([*totals, norm.double()[None]]).tolist()
        names = ["tokens", *self.batches[-1].parts, *COUNTS]
        width = len(names)
        sums = [dict(zip(names, values[i : i + width])) for i in range(0, len(values), width)]
        problem = nonfinite_part(sums, norm, self.scaler)
        if problem:
            for buffer, value in zip(buffers, saved_buffers):
                buffer.copy_(value)
            raise NotFiniteError(problem)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        summed = {name: sum(batch_sums[name] for batch_sums in sums) for name in names}
        return StepResult(summed, {"grad_norm": norm})

    def _forward(self, batch: Batch, number: int) -> ObjectiveOutput:
        """Run the model. Dropout and sampling depend only on seed, batch number and rank."""
        torch.manual_seed(derived_seed("step", self.config.seed, number, distributed.rank()))
        inputs: list[Any] = [batch["image"], batch["captions"]]
        if self.config.reward:
            inputs.append(batch["image_id"])
        if self.config.drop_image:
            dropped = torch.tensor(batch["dropped"])
            inputs.append(dropped.to(self.precision.device, non_blocking=True))
        prompts = {}
        if any(batch["prompt"]) and not prompt_is_question(self.config):
            prompts["prompts"] = batch["prompt"]
        with self.precision.autocast():
            output = self.model(*inputs, **prompts)
        parts = {"loss": output.loss.detach(), **output.parts}
        self.batches.append(BatchReport(batch["image_id"], parts))
        return output

    def _sums(self, output: ObjectiveOutput, batch: Batch) -> Tensor:
        """Sums of the latest batch on this rank, float64 (n,): tokens, loss, parts, COUNTS."""
        parts = self.batches[-1].parts
        means = torch.stack([torch.ones_like(parts["loss"]), *parts.values()]).double()
        counts = torch.tensor([batch["skipped"], bool(signals.stop_requested())]).double()
        counts = counts.to(self.precision.device, non_blocking=True)
        return torch.cat([means * output.tokens, counts])
