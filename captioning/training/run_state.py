"""Saves and restores the state of a run: weights, optimizer, loss scale and progress in an epoch.

A checkpoint does not have the state of random generators. Instead, each generator is seeded anew
from the run's seed, the rank, and the epoch, index or step; see `data/randomness.py`.
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


class Progress(NamedTuple):
    """How far a run is.

    epoch: the current epoch, from 0. steps: the number of finished optimizer steps in this epoch.
    sums: sums over these steps of the values that the epoch's log line averages.
    """

    epoch: int = 0
    steps: int = 0
    sums: dict[str, float] = {}  # noqa: RUF012 - never changed in place


def progress_of(content: dict[str, Any]) -> Progress:
    """Return the progress at which a run resumes, given the content of a checkpoint."""
    unfinished = content.get("within")
    if unfinished is None:
        return Progress(content["epoch"] + 1)
    return Progress(content["epoch"], unfinished["steps"], unfinished["sums"])


def batch_sizes(config: Config) -> dict[str, int]:
    """Return {setting: value} of the settings whose product is the number of images per step."""
    return {
        "batch_size": config.batch_size,
        "processes": distributed.world_size(),
        "accumulation_steps": config.accumulation_steps,
    }


class RunState:
    """Saves the state of training to checkpoints, and restores the state from a checkpoint.

    The content of a checkpoint has these keys:

    - model: the captioner's state dict; {} in a sharded checkpoint, whose other files have it
    - optimizer: the optimizer's state dict; in a sharded checkpoint only its "param_groups"
    - config: the configuration, as a dict
    - epoch: the epoch, from 0
    - within: {"steps", "sums"} of `Progress`; only in a checkpoint within an epoch
    - scaler: the state dict of the loss scale
    - batches: see `batch_sizes`
    - items: the number of items in the training data
    - the captioner's `saved_beside_weights`
    """

    def __init__(
        self,
        config: Config,
        captioner: nn.Module,
        optimizer: torch.optim.Optimizer,
        precision: Precision,
        num_items: int,
    ):
        self.config, self.captioner, self.num_items = config, captioner, num_items
        self.optimizer, self.scaler = optimizer, precision.scaler

    def restore(self, content: dict[str, Any]) -> None:
        """Load the content of a checkpoint. Raises UserError."""
        try:
            if "folder" in content:
                groups = content["optimizer"]["param_groups"]
                sharding.load_sharded(self.captioner, self.optimizer, content["folder"], groups)
            else:
                state = content["model"], content["optimizer"]
                sharding.load(self.captioner, self.optimizer, *state)
            if content.get("scaler") and self.scaler.is_enabled():
                self.scaler.load_state_dict(content["scaler"])
        except (RuntimeError, ValueError, LookupError, TypeError) as error:
            raise UserError(
                f"the checkpoint in {self.config.output_dir} does not fit this model "
                f"({one_line(error, 150)}); set another output_dir, or "
                "resume=never, which moves that run aside"
            ) from error

    def save_epoch(self, folder: Path, epoch: int) -> None:
        """Write the checkpoint of a complete epoch.

        With `keep_checkpoints: all`, a checkpoint without the optimizer is written first, so that
        after a crash each epoch with a full checkpoint also has the other. All ranks call this.
        Raises UserError on all ranks.
        """
        weights_path = None
        if self.config.keep_checkpoints == "all":
            weights_path = checkpoints.weights_path(folder, epoch)
        self._save(checkpoints.epoch_path(folder, epoch), weights_path, epoch=epoch)

    def save_step(self, folder: Path, progress: Progress, step: int) -> None:
        """Write a checkpoint within an epoch. All ranks call this. Raises UserError on all ranks.

        step: the number of finished steps of the run, over all epochs.
        """
        path = checkpoints.step_path(folder, progress.epoch, step)
        unfinished = {"steps": progress.steps, "sums": progress.sums}
        self._save(path, None, epoch=progress.epoch, within=unfinished)

    def _save(self, path: Path, weights_path: Optional[Path], epoch: int, **progress: Any) -> None:
        distributed.broadcast_buffers(self.captioner)
        keep = self.config.keep_checkpoints
        content = {
            "config": self.config.model_dump(),
            "epoch": epoch,
            **progress,
            **self.captioner.saved_beside_weights(),
        }
        training = {
            "scaler": self.scaler.state_dict(),
            "batches": batch_sizes(self.config),
            "items": self.num_items,
        }
        # Remove scores of this epoch that an earlier attempt has left: they are of other weights.
        distributed.run_on_main(lambda: remove_scores(path.parent, evaluation_name(epoch)))
        write = self._write_sharded if self.config.checkpoint_format == "sharded" else self._write
        write(content, training, path, weights_path)
        min_kept = checkpoints.MIN_KEPT if keep == "all" else keep
        distributed.run_on_main(lambda: checkpoints.remove_oldest(path.parent, min_kept))

    def _write(self, content, training, path: Path, weights_path: Optional[Path]) -> None:
        """Gather the tensors, and write unsharded files on rank 0.

        content: the entries for both files. training: further entries, only for `path`.
        """
        is_main = distributed.is_main()
        model = sharding.full_state_dict(self.captioner, keep=is_main)
        optimizer = sharding.gather_full(self.optimizer.state_dict(), keep=is_main)

        def save():
            weights = {"model": model, **content}
            if weights_path is not None:
                checkpoints.save(weights, weights_path)
            checkpoints.save({**weights, "optimizer": optimizer, **training}, path)

        distributed.run_on_main(save)

    def _write_sharded(self, content, training, path: Path, weights_path: Optional[Path]) -> None:
        """Write sharded checkpoints, which are folders. Each rank writes its shards.

        For the parameters, see `_write`.
        """
        model, moments = sharding.named_tensors(self.captioner, self.optimizer)
        optimizer = {"param_groups": self.optimizer.state_dict()["param_groups"]}
        non_tensors = {"model": {}, **content}
        if weights_path is not None:
            save_sharded(non_tensors, model, weights_path)
        tensors = {**model, **moments}
        save_sharded({**non_tensors, "optimizer": optimizer, **training}, tensors, path)
