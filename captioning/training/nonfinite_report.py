"""A loss or a gradient that is not finite: what is kept of its step, and the line of the run's end.

python -m captioning.train --config CONFIG ... output_dir=RUN/not_finite_step00000013

repeats the step: the folder has a checkpoint of the weights and the optimiser before it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor, nn

from captioning.config import Config
from captioning.data import Prefetcher
from captioning.data.loader import Batch, TrainingLoader
from captioning.files.writing import require_folder, write_json
from captioning.models.build import preprocessing_of
from captioning.models.precision import Precision
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.training import sharding
from captioning.training.output_folder import working_folder
from captioning.training.run_state import Place, RunState
from smile import ObjectiveOutput

REPORT = "not_finite.json"
LEAST_SCALE = 1.0  # of the loss: a gradient that overflows without being scaled up is a fault


ADVICE = "lower init_lr, set clip_grad_norm, or use another precision than {}"


def inputs_of(batch: Batch, config: Config) -> list[Any]:
    """What of a batch a step's forward takes: for a reward also which images they are."""
    return [batch[name] for name in ("image", "captions", *(["image_id"] * bool(config.reward)))]


class KeptBatch(NamedTuple):
    """What is kept of a batch until its step is done.

    seed: of every generator of torch before it. parts: the loss and its parts by name, scalars.
    sampled: with a reward, of each image the captions that were drawn, and what each is worth.
    """

    seed: int
    image_ids: list
    indices: list[int]
    captions: list[list[str]]
    parts: Mapping[str, Tensor]
    sampled: Optional[list[list[dict[str, Any]]]] = None

    @classmethod
    def of(
        cls, batch: Batch, seed: int, output: ObjectiveOutput, sampled: Optional[list] = None
    ) -> "KeptBatch":
        kept = (batch["image_id"], batch["index"], batch["captions"], parts_of(output))
        return cls(seed, *kept, sampled)


def parts_of(output: ObjectiveOutput) -> dict[str, Tensor]:
    """The loss, detached, and its parts by name."""
    return {"loss": output.loss.detach(), **output.parts}


def what_is_not_finite(
    sums: Sequence[Sequence[float]],
    norm: float,
    scaler: torch.amp.GradScaler,
    names: Sequence[str],
) -> Optional[str]:
    """ "reward", "loss" or "gradient" where a step must not be taken; None where it may be.

    sums: of each batch, over all ranks, and their names; norm: of the gradient. With
    float16 the scaler takes an overflow of the gradient as a sign to scale less, and passes over
    the step; once it does not scale up any more, that is no reason.
    """
    if not all(math.isfinite(value) for of_batch in sums for value in of_batch):
        rewards = [dict(zip(names, of_batch)).get("reward", 0.0) for of_batch in sums]
        return "loss" if all(map(math.isfinite, rewards)) else "reward"
    if math.isfinite(norm) or (scaler.is_enabled() and scaler.get_scale() > LEAST_SCALE):
        return None
    return "gradient"


class Evidence:
    """Looks into a step that failed, and writes down what is needed to look further.

    state, learner, loader, precision: the run's. began: where it went on from a checkpoint, if it
    did.
    """

    def __init__(
        self,
        state: RunState,
        learner: nn.Module,
        loader: TrainingLoader,
        precision: Precision,
        began: Optional[Place],
    ):
        self.state, self.learner, self.began = state, learner, began
        self.loader, self.precision = loader, precision
        self.config = state.config

    def error(self, what: str, step: int, place: Place, kept: Sequence[KeptBatch]) -> UserError:
        """The line that ends the run, the same on all ranks, which ask for it together.

        step, place: those done before. Written first, into a folder within the run's: a checkpoint
        of what was before the step, unless the run began with it, and REPORT: of each rank the
        batches, their loss, and what they give when each is tried again by itself.
        """
        folder = working_folder(self.config.output_dir) / f"not_finite_step{step + 1:08d}"
        about = {"what": what, "step": step + 1, "epoch": place.epoch}
        about["gradients"] = _not_finite_gradients(self.state.captioner)
        told = self._save(folder, step, place)
        found = distributed.gather_on_main(self._looked_at(place, kept))
        told = self._write(folder, {**about, "ranks": found}) or told
        culprit = _culprit(what, found) if distributed.is_main() else None
        culprit = distributed.broadcast_from_main(culprit)
        advice = ADVICE.format(self.config.precision)
        if what == "reward":
            advice = f"look at its captions, or leave out a part of reward: {self.config.reward}"
        return UserError(
            f"the {what} is not finite at step {step + 1} ({culprit}); {advice}; {told}"
        )

    def _save(self, folder: Path, step: int, place: Place) -> str:
        """Save what was before the step, and say how it is repeated."""
        if place == self.began:
            return f"{folder / REPORT} tells more, and the same command repeats the step"
        try:
            distributed.main_alone(lambda: require_folder(folder))
            self.state.save_step(folder, place, step)
        except UserError as problem:
            return str(problem)
        anew = " resume=auto" if self.config.resume == "never" else ""
        return f"{folder / REPORT} tells more, and output_dir={folder}{anew} repeats the step"

    def _write(self, folder: Path, report: Mapping[str, Any]) -> Optional[str]:
        """Write REPORT; why it could not be, or None."""
        scale = self.state.scaler.get_scale() if self.state.scaler.is_enabled() else None
        try:
            distributed.main_alone(
                lambda: write_json(
                    {**report, "loss_scale": scale, "config": self.config.model_dump()},
                    folder / REPORT,
                )
            )
        except UserError as problem:
            return str(problem)
        return None

    def _looked_at(self, place: Place, kept: Sequence[KeptBatch]) -> list[dict[str, Any]]:
        """Each batch of this rank, read and tried again: the same draws, no other rank, no step."""
        found = [_described(batch) for batch in kept]
        for entry, batch in zip(found, self._read_again(place, kept)):
            entry["again"] = self._again(batch)
        return found

    def _read_again(self, place: Place, kept: Sequence[KeptBatch]) -> Iterator[dict[str, Any]]:
        """The batches, each with its seed; {"problem"} for one that cannot be read any more."""
        self.loader.set_epoch(place.epoch, place.steps * len(kept))
        batches = Prefetcher(
            islice(self.loader, len(kept)),
            self.precision.device,
            preprocessing_of(self.config).normalise,
        )
        done = 0
        try:
            for before, batch in zip(kept, batches):
                yield {**batch, "seed": before.seed}
                done += 1
        except UserError as problem:  # an image is gone; other ranks wait for what is known
            yield from [{"problem": str(problem)}] * (len(kept) - done)

    def _again(self, batch: dict[str, Any]) -> dict[str, Any]:
        """What a batch of `_read_again` gives. All ranks that divide a captioner try each one's."""
        if not sharding.is_divided(self.state.captioner):
            return self._alone(batch)
        if "image" in batch:
            batch = {**batch, "image": batch["image"].to("cpu")}
        tried = [self._alone(one) for one in distributed.each_rank_in_turn(batch)]
        return tried[distributed.rank()]

    def _alone(self, batch: dict[str, Any]) -> dict[str, Any]:
        if "problem" in batch:
            return batch
        captioner = self.state.captioner
        captioner.zero_grad()
        torch.manual_seed(batch["seed"])
        with self.precision.autocast():
            image = batch["image"].to(self.precision.device)
            output = self.learner(*inputs_of({**batch, "image": image}, self.config))
        self.state.scaler.scale(output.loss).backward()
        return {"parts": _numbers(parts_of(output)), "gradients": _not_finite_gradients(captioner)}


def _described(batch: KeptBatch) -> dict[str, Any]:
    described = {**batch._asdict(), "parts": _numbers(batch.parts)}
    sampled = described.pop("sampled")
    if sampled is not None:
        drawn = ([(one["caption"], _number(one["reward"])) for one in group] for group in sampled)
        described["sampled"] = [[dict(caption=c, reward=r) for c, r in group] for group in drawn]
    return described


def _numbers(parts: Mapping[str, Tensor]) -> dict[str, Any]:
    """As JSON has them; what it has no number for as "nan", "inf" or "-inf"."""
    return {name: _number(value.item()) for name, value in parts.items()}


def _number(value: float) -> Any:
    return value if math.isfinite(value) else str(value)


def _not_finite_gradients(captioner: nn.Module) -> list[str]:
    """The parameters of whose gradient some value is not finite."""
    named = ((n, p.grad) for n, p in captioner.named_parameters() if p.grad is not None)
    return [name for name, gradient in named if not sharding.whole(gradient).isfinite().all()]


def _culprit(what: str, found: Sequence[Sequence[dict[str, Any]]]) -> str:
    """Which rank had which images, by what each rank found of its batches."""

    def failed(batch: dict[str, Any]) -> bool:
        return bool(_gradients_again(batch)) if what == "gradient" else not _are_finite(batch)

    causes = [(rank, b) for rank, batches in enumerate(found) for b in batches if failed(b)]
    if not causes:
        images = [i for batches in found for batch in batches for i in batch["image_ids"]]
        return f"on no rank by itself; the images were {images[:8]}"
    rank, batch = causes[0]
    others = {other for other, _ in causes} - {rank}
    more = f", as had rank {', '.join(map(str, sorted(others)))} others" if others else ""
    return f"rank {rank} had images {batch['image_ids'][:8]}{more}"


def _are_finite(batch: Mapping[str, Any]) -> bool:
    return not any(isinstance(value, str) for value in batch["parts"].values())


def _gradients_again(batch: Mapping[str, Any]) -> list[str]:
    return batch.get("again", {}).get("gradients", [])
