"""Saves and restores the state of a run, and decides whether a run resumes.

A checkpoint does not have the state of random generators. Instead, each generator is seeded anew
from the run's seed, the rank, and the epoch, index or step; see `data/randomness.py`.
"""

import math
from typing import Any, NamedTuple, Optional

import torch
from pydantic import ValidationError
from torch import nn

from BLIP.adapter import adapter_config
from captioning.config import Config, explained, keys_of, parse_config
from captioning.files import stores
from captioning.files.cache import local
from captioning.models import checkpoints
from captioning.models.precision import Precision
from captioning.rewards.registry import REWARDS
from captioning.runtime import distributed
from captioning.runtime.errors import UserError, one_line
from captioning.runtime.progress import log_line
from captioning.runtime.registry import load
from captioning.training import fsdp
from captioning.training.output_folder import OutputFolder

# Schedules in which the learning rate of each epoch depends on the total number of epochs.
LENGTH_DEPENDENT = ("cosine", "cosine_steps", "cosine_restarts")
ADVICE = "set another output_dir, or move that run away"


class Progress(NamedTuple):
    """How far a run is.

    - epoch: the number of finished epochs
    - steps: the number of finished optimizer steps in the epoch after them
    - sums: sums over these steps of the values that the epoch's log line averages
    """

    epoch: int = 0
    steps: int = 0
    sums: dict[str, float] = {}  # noqa: RUF012 - never changed in place

    @classmethod
    def of(cls, content: Optional[dict[str, Any]]) -> "Progress":
        """Return where a run resumes. content: of its newest checkpoint; None for a new run."""
        if content is None:
            return cls()
        if "within" not in content:
            return cls(content["epoch"] + 1)
        return cls(content["epoch"], **content["within"])


def batch_sizes(config: Config) -> dict[str, int]:
    """Return {setting: value} of the settings whose product is the number of images per step."""
    return {
        "batch_size": config.batch_size,
        "processes": distributed.world_size(),
        "accumulation_steps": config.accumulation_steps,
    }


def resume_content(
    config: Config, output: OutputFolder, num_items: int
) -> Optional[dict[str, Any]]:
    """Return the newest undamaged checkpoint's content and "name", or None for a new run.

    All ranks call this, and rank 0 decides for all ranks. num_items: the number of items in the
    training data. Raises UserError if the run to resume has other settings or data, or if the
    folder has weights of an earlier run without a checkpoint to resume from.
    """
    content = name = None
    if distributed.is_main():
        checkpoints.remove_leftovers(output.folder)
        if newest := checkpoints.read_newest(output.folder):
            content, name = newest.content, stores.join(config.output_dir, newest.path.name)
            _check_same_run(config, content, num_items)
            for line in newest.log_lines:
                log_line(line)
        elif any(output.folder.glob("*.pth")):
            raise UserError(
                f"{config.output_dir} has weights of an earlier run, but no checkpoint to resume "
                f"from; {ADVICE}"
            )
    name = distributed.broadcast_from_main(name)
    if name is None:
        return None
    return {"name": name, **(content or checkpoints.read(local(name)))}


def _check_same_run(config: Config, content: dict[str, Any], num_items: int) -> None:
    """Raise UserError if other settings or data would make the run another run.

    content: the content of the run's checkpoint. `captioning.config.keys.ROLES` says which settings
    have to stay.
    """
    label, done = f"the run in {config.output_dir}", Progress.of(content)
    saved, current = _saved_settings(content, label), config.model_dump()
    changes = {
        key: f"{key} was {saved[key]!r}, is {value!r}"
        for key, value in current.items()
        if saved[key] != value
    }
    fixed = keys_of("run")
    for name in config.reward or ():
        fixed += load(REWARDS[name]).options  # of metrics, whose options may otherwise change
    if config.lr_schedule in LENGTH_DEPENDENT:
        fixed += keys_of("length")
    # Turning skip_bad_images on is allowed: an unreadable image would have stopped the run, so
    # that the finished steps had none.
    if config.skip_bad_images:
        fixed.remove("skip_bad_images")
    problems = [text for key, text in changes.items() if key in fixed]
    now, items = batch_sizes(config), content.get("items", num_items)
    before = content.get("batches", now)
    same_images = math.prod(before.values()) == math.prod(now.values())
    # With bucket_batches, a batch of all processes has captions of similar length, so that its size
    # must not change either. It is (images per step) / accumulation_steps.
    same_buckets = before["accumulation_steps"] == now["accumulation_steps"]
    if not same_images or (config.bucket_batches and not same_buckets):
        problems.append(f"images per step were the product of {before}, are that of {now}")
    if items != num_items:
        problems.append(f"it had {items} training items, now there are {num_items}")
    started = done.epoch + (done.steps > 0)
    if started > config.max_epoch:
        problems.append(f"max_epoch is {config.max_epoch}, but {started} epochs have begun")
    if problems:
        raise UserError(
            f"{label} had other settings ({'; '.join(problems)}); set the old ones, or {ADVICE}"
        )
    free = {*keys_of("generation"), *keys_of("scoring"), *keys_of("data")}
    if changed := [text for key, text in changes.items() if key in free]:
        log_line(f"{label} had other settings, which finished epochs keep: {'; '.join(changed)}")


def _saved_settings(content: dict[str, Any], label: str) -> dict[str, Any]:
    """Return the configuration in a checkpoint, with defaults for keys that are newer than it."""
    values = {"exif": False, **content["config"]}  # earlier versions turned no photo
    try:
        return parse_config(values).model_dump()
    except ValidationError as error:
        raise UserError(
            f"{label} has a setting that this version refuses ({explained(error, values)}): finish "
            f"it with the version that began it, or {ADVICE}"
        ) from error


class Checkpointing:
    """Saves the state of training to checkpoints, and restores the state from a checkpoint.

    The content of a checkpoint has these keys:

    - model: the captioner's state dict; with LoRA only the adapter's
    - optimizer: the optimizer's state dict
    - config: the configuration, as a dict
    - epoch: the epoch, from 0
    - within: {"steps", "sums"} of `Progress`; only in a checkpoint within an epoch
    - scaler: the state dict of the loss scale
    - batches: see `batch_sizes`
    - items: the number of items in the training data
    - the captioner's `saved_beside_weights` and `adapter_config`
    """

    def __init__(
        self,
        config: Config,
        output: OutputFolder,
        captioner: nn.Module,
        optimizer: torch.optim.Optimizer,
        precision: Precision,
        num_items: int,
    ):
        self.config, self.output, self.captioner = config, output, captioner
        self.optimizer, self.scaler, self.num_items = optimizer, precision.scaler, num_items

    def restore(self, content: dict[str, Any]) -> None:
        """Load the content of a checkpoint. Raises UserError."""
        try:
            fsdp.load(self.captioner, self.optimizer, content["model"], content["optimizer"])
            if self.scaler.is_enabled():
                self.scaler.load_state_dict(content["scaler"])
        except (RuntimeError, ValueError, LookupError, TypeError) as error:
            raise UserError(
                f"the checkpoint in {self.config.output_dir} does not fit this model "
                f"({one_line(error, 150)}); {ADVICE}"
            ) from error

    def save(self, progress: Progress, step: int = 0) -> None:
        """Write a checkpoint of a finished epoch, or within one if `progress` has steps.

        With `keep_checkpoints: all`, the weights of a finished epoch are also written alone. This
        is done first, so that after a crash each epoch with a full checkpoint has both. All ranks
        call this. step: the number of finished steps of the run, for the name of a checkpoint
        within an epoch. Raises UserError on all ranks.
        """
        is_main, folder = distributed.is_main(), self.output.folder
        keep = self.config.keep_checkpoints
        keeps_all = keep == "all"
        epoch, within = progress.epoch, {}
        if progress.steps:
            path = checkpoints.step_path(folder, epoch, step)
            within["within"] = {"steps": progress.steps, "sums": progress.sums}
        else:
            epoch -= 1
            path = checkpoints.epoch_path(folder, epoch)
        distributed.broadcast_buffers(self.captioner)
        weights = {
            "model": fsdp.full_state_dict(self.captioner, keep=is_main),
            "config": self.config.model_dump(),
            "epoch": epoch,
            **within,
            **self.captioner.saved_beside_weights(),
            **adapter_config(self.captioner),
        }
        training = {
            "optimizer": fsdp.gather_full(self.optimizer.state_dict(), keep=is_main),
            "scaler": self.scaler.state_dict(),
            "batches": batch_sizes(self.config),
            "items": self.num_items,
        }

        def write():
            if keeps_all and not within:
                checkpoints.save(weights, checkpoints.weights_path(folder, epoch))
            checkpoints.save({**weights, **training}, path)
            checkpoints.remove_oldest(folder, checkpoints.MIN_KEPT if keeps_all else keep)

        distributed.run_on_main(write)
        self.output.upload()
