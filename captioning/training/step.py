"""Takes one optimizer step: forward and backward on accumulated batches, a check, the update."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from captioning.config import Config
from captioning.data.loader import Batch
from captioning.data.randomness import derived_seed
from captioning.models.precision import Precision
from captioning.models.prompts import prompt_is_question
from captioning.runtime import distributed, signals
from captioning.training.nonfinite_report import BatchReport, NotFiniteError, nonfinite_part
from captioning.training.optimizer import clip_gradients
from smile import ObjectiveOutput

# These values are counts, which are summed over batches. All other values are means over tokens.
COUNTS = ("skipped_images", "stop_requested")
TOKENS = 0  # the index of the number of tokens in `TrainingStep._sums`


class StepResult(NamedTuple):
    """The values of a step, for the log.

    sums: {name: sum over all batches and ranks}. "tokens" is the number of tokens. "loss" and each
    part of the loss are multiplied by the number of tokens before summing. COUNTS are counts.
    values: values that need no averaging, {"grad_norm": norm before clipping}.
    """

    sums: dict[str, float]
    values: dict[str, float]


class TrainingStep:
    """Trains a model on accumulated batches.

    learner: the captioner, or the `SelfCritical` that wraps the captioner. model: the learner, or
    the DistributedDataParallel that wraps the learner. batches: reports of the batches of the
    latest step, for the error message of a step that is not finite.
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
        # Copy all values from the GPU at once. This is the step's only synchronisation with the
        # GPU, unless the objective reads the labels.
        *values, norm = torch.cat([*totals, norm.double()[None]]).tolist()
        names = ["tokens", *self.batches[-1].parts, *COUNTS]
        width = len(names)
        sums = [dict(zip(names, values[i : i + width])) for i in range(0, len(values), width)]
        problem = nonfinite_part(sums, norm, self.scaler)
        if problem:
            for buffer, value in saved_buffers:
                buffer.copy_(value)
            raise NotFiniteError(problem)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        summed = {name: sum(batch_sums[name] for batch_sums in sums) for name in names}
        return StepResult(summed, {"grad_norm": norm})

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
        inputs = [batch["image"], batch["captions"]]
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
        """Return the sums of the latest batch on this rank, float64 (n,).

        The sums are, in this order: the number of tokens; the loss and the parts of the loss, each
        multiplied by the number of tokens; and COUNTS.
        """
        parts = self.batches[-1].parts
        means = torch.stack([torch.ones_like(parts["loss"]), *parts.values()]).double()
        counts = torch.tensor([batch["skipped"], bool(signals.stop_requested())]).double()
        counts = counts.to(self.precision.device, non_blocking=True)
        return torch.cat([means * output.tokens, counts])
