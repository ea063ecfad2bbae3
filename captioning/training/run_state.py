"""What a checkpoint holds of a run: weights, optimiser, loss scaling and the place in an epoch.

No random generator is among it: order, augmentation, dropout and sampled captions are drawn from
generators that are seeded anew by seed, epoch, index or step, and rank, see `data/randomness.py`.
"""

from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch
from torch import nn

from captioning.config import Config
from captioning.models import checkpoints
from captioning.models.precision import Precision
from captioning.models.sharded_checkpoint import save_sharded
from captioning.runtime import distributed
from captioning.runtime.errors import UserError, one_line
from captioning.training import sharding
from captioning.training.split_evaluation import remove_scores
from captioning.training.validation_history import evaluation_name
from smile import Objective


class Place(NamedTuple):
    """How far a run is: in `epoch`, of which so many optimiser steps are done.

    sums: what the epoch's log line is made of, by name, so far.
    """

    epoch: int = 0
    steps: int = 0
    sums: dict[str, float] = {}  # noqa: RUF012 - of a tuple, never changed


def place_of(content: dict[str, Any]) -> Place:
    """The place at which to go on from a checkpoint's content."""
    within = content.get("within")
    if within is None:
        return Place(content["epoch"] + 1)
    return Place(content["epoch"], within["steps"], within["sums"])


def batches(config: Config) -> dict[str, int]:
    """What decides which images a step of this run takes, by what the user may set."""
    return {
        "batch_size": config.batch_size,
        "processes": distributed.world_size(),
        "accumulation_steps": config.accumulation_steps,
    }


def batches_of(content: dict[str, Any]) -> Optional[dict[str, int]]:
    """Those of the run that saved a checkpoint's content, None where it did not keep them."""
    return content.get("batches") or content.get("within", {}).get("batches")


class RunState:
    """The parts of a run that training changes."""

    def __init__(
        self,
        config: Config,
        captioner: nn.Module,
        optimizer: torch.optim.Optimizer,
        precision: Precision,
    ):
        self.config, self.captioner = config, captioner
        self.optimizer, self.scaler = optimizer, precision.scaler

    def restore(self, content: dict[str, Any]) -> Place:
        """Put the content of a checkpoint in place; where to go on. Raises UserError."""
        try:
            for group in content["optimizer"]["param_groups"]:
                group["fused"] = True  # also where an older run was not
            if "parts" in content:
                groups = content["optimizer"]["param_groups"]
                sharding.load_parts(self.captioner, self.optimizer, content["parts"], groups)
            else:
                state = content["model"], content["optimizer"]
                sharding.load(self.captioner, self.optimizer, *state)
            if content.get("scaler") and self.scaler.is_enabled():
                self.scaler.load_state_dict(content["scaler"])
            for objective in self._objectives():
                objective.restore(content.get("objective", {}))
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"the checkpoint in {self.config.output_dir} is not of this model "
                f"({one_line(error, 150)}); give another output_dir, or "
                "resume=never, which moves that run aside"
            ) from error
        return place_of(content)

    def save_epoch(self, folder: Path, epoch: int) -> None:
        """Write the checkpoint of an epoch that is done; all ranks. Raises UserError on all."""
        weights = None
        if self.config.keep_checkpoints == "all":
            weights = checkpoints.weights_path(folder, epoch)
        self._save(checkpoints.epoch_path(folder, epoch), {"epoch": epoch}, epoch, weights)

    def save_step(self, folder: Path, place: Place, step: int) -> None:
        """Write that of a place within an epoch, after `step` steps of the run."""
        within = {"steps": place.steps, "sums": place.sums}
        path = checkpoints.step_path(folder, place.epoch, step)
        self._save(path, {"epoch": place.epoch, "within": within}, place.epoch)

    def _save(
        self, path: Path, place: dict[str, Any], epoch: int, weights: Optional[Path] = None
    ) -> None:
        """Write a checkpoint, and before it the weights alone, so that none lacks them."""
        distributed.share_buffers(self.captioner)
        keep = self.config.keep_checkpoints
        content = {
            "config": self.config.model_dump(),
            **place,
            **self.captioner.saved_beside_weights(),
        }
        training = {
            "scaler": self.scaler.state_dict(),
            "batches": batches(self.config),
            "objective": {k: v for o in self._objectives() for k, v in o.state().items()},
        }
        # Scores are of weights that are no more.
        distributed.main_alone(lambda: remove_scores(path.parent, evaluation_name(epoch)))
        write = self._write_parts if self.config.checkpoint_format == "sharded" else self._write
        write(content, training, path, weights)
        least = checkpoints.LEAST if keep == "all" else keep
        distributed.main_alone(lambda: checkpoints.remove_oldest(path.parent, least))

    def _write(self, content, training, path: Path, weights: Optional[Path]) -> None:
        """As files, which rank 0 writes."""
        model = sharding.whole_weights(self.captioner, distributed.is_main())
        optimizer = sharding.whole(self.optimizer.state_dict(), distributed.is_main())

        def save() -> None:
            whole = {"model": model, **content}
            if weights is not None:
                checkpoints.save(whole, weights)
            checkpoints.save({**whole, "optimizer": optimizer, **training}, path)

        distributed.main_alone(save)

    def _write_parts(self, content, training, path: Path, weights: Optional[Path]) -> None:
        """As folders, to which each rank writes what it has."""
        model, moments = sharding.named_tensors(self.captioner, self.optimizer)
        optimizer = {"param_groups": self.optimizer.state_dict()["param_groups"]}
        rest = {"model": {}, **content}
        if weights is not None:
            save_sharded(rest, model, weights)
        save_sharded({**rest, "optimizer": optimizer, **training}, {**model, **moments}, path)

    def _objectives(self) -> list[Objective]:
        """The captioner's, whose last losses truncation goes by."""
        return [part for part in self.captioner.modules() if isinstance(part, Objective)]
