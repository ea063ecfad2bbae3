"""Saves and restores the state of a run, and decides whether a run resumes.

A checkpoint does not have the state of random generators. Instead, each generator is seeded anew
from the run's seed, the rank, and the epoch, index or step; see `data/randomness.py`.
"""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
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
from captioning.training.selection import evaluation_name, remove_scores

# Schedules in which the learning rate of each epoch depends on the total number of epochs.
LENGTH_DEPENDENT = ("cosine", "cosine_steps", "cosine_restarts")
ADVICE = "set another output_dir, or move that run away"


class Progress(NamedTuple):
    """How far a run is.

    - epoch: the current epoch, from 0
    - steps: the number of finished optimizer steps in this epoch
    - sums: sums over these steps of the values that the epoch's log line averages
    """

    epoch: int = 0
    steps: int = 0
    sums: dict[str, float] = {}  # noqa: RUF012 - never changed in place


def progress_of(content: Optional[dict[str, Any]]) -> Progress:
    """Return the progress at which a run resumes, given the content of a checkpoint or None."""
    if content is None:
        return Progress()
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
    label, done = f"the run in {config.output_dir}", progress_of(content)
    saved = _saved_settings(content, label)
    problems = list(_changes(config, saved, [*keys_of("run", type(config)), *_reward_keys(config)]))
    why = _why_length_stays(config)
    if why and (lengths := list(_changes(config, saved, keys_of("length", type(config))))):
        problems += [f"{', '.join(lengths)}: {why} depend on it"]
    now, before = batch_sizes(config), content.get("batches", batch_sizes(config))
    images = math.prod(before.values()), math.prod(now.values())
    # With bucket_batches, a batch of all processes has captions of similar length, so that its size
    # must not change either. It is (images per step) / accumulation_steps.
    same_buckets = before["accumulation_steps"] == now["accumulation_steps"]
    if images[0] != images[1] or (config.bucket_batches and not same_buckets):
        old, new = (f"{n} ({_listed(sizes)})" for n, sizes in zip(images, (before, now)))
        problems.append(f"images per step were {old}, are {new}")
    if (items := content.get("items", num_items)) != num_items:
        problems.append(f"it had {items} training items, now there are {num_items}")
    started = done.epoch + (1 if done.steps else 0)
    if started > config.max_epoch:
        problems.append(f"max_epoch is {config.max_epoch}, but {started} epochs have begun")
    if problems:
        raise UserError(
            f"{label} had other settings ({'; '.join(problems)}); set the old ones, or {ADVICE}"
        )


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


def _changes(config: Config, saved: dict[str, Any], keys: Iterable[str]) -> Iterator[str]:
    """Yield a text with the old and the new value of each of the keys that has changed."""
    current = config.model_dump()
    for key in dict.fromkeys(keys):
        # If the earlier run trained another kind of captioner, only the common keys are compared.
        # Turning skip_bad_images on is allowed: an unreadable image would have stopped the run, so
        # that the finished steps had none.
        is_same = key not in saved or saved[key] == current[key]
        if not is_same and not (key == "skip_bad_images" and current[key]):
            yield f"{key} was {saved[key]!r}, is {current[key]!r}"


def _reward_keys(config: Config) -> list[str]:
    """Return the options of the run's rewards. Options of metrics may change."""
    rewards = [load(REWARDS[name]) for name in config.reward or ()]
    return [key for reward in rewards for key in reward.options]


def _why_length_stays(config: Config) -> Optional[str]:
    """Return what of the finished epochs depends on the length of the run; None if nothing."""
    if config.lr_schedule in LENGTH_DEPENDENT:
        return f"with lr_schedule {config.lr_schedule} the learning rates of finished epochs"
    return None


def _listed(sizes: dict[str, int]) -> str:
    return ", ".join(f"{number} {key}" for key, number in sizes.items())


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
        self.config, self.output, self.folder = config, output, output.folder
        self.captioner, self.num_items = captioner, num_items
        self.optimizer, self.scaler = optimizer, precision.scaler

    def restore(self, content: dict[str, Any]) -> None:
        """Load the content of a checkpoint. Raises UserError."""
        try:
            fsdp.load(self.captioner, self.optimizer, content["model"], content["optimizer"])
            if content.get("scaler") and self.scaler.is_enabled():
                self.scaler.load_state_dict(content["scaler"])
        except (RuntimeError, ValueError, LookupError, TypeError) as error:
            raise UserError(
                f"the checkpoint in {self.config.output_dir} does not fit this model "
                f"({one_line(error, 150)}); {ADVICE}"
            ) from error

    def is_due(self, step: int, steps: int) -> bool:
        """Return whether to save within an epoch after `step` steps of the run.

        steps: the number of steps per epoch.
        """
        every = self.config.checkpoint_every
        return every is not None and step % every == 0 and step % steps != 0

    def save_epoch(self, epoch: int) -> None:
        """Write the checkpoint of a complete epoch. All ranks call this.

        With `keep_checkpoints: all`, a checkpoint without the optimizer is written first, so that
        after a crash each epoch with a full checkpoint also has the other. Raises UserError on all
        ranks.
        """
        keep = self.config.keep_checkpoints
        weights_path = checkpoints.weights_path(self.folder, epoch) if keep == "all" else None
        self._save(checkpoints.epoch_path(self.folder, epoch), weights_path, epoch)

    def save_step(self, progress: Progress, step: int) -> None:
        """Write a checkpoint within an epoch. All ranks call this. Raises UserError on all ranks.

        step: the number of finished steps of the run, over all epochs.
        """
        path = checkpoints.step_path(self.folder, progress.epoch, step)
        unfinished = {"steps": progress.steps, "sums": progress.sums}
        self._save(path, None, progress.epoch, within=unfinished)

    def save_before_failure(self, progress: Progress, step: int) -> str:
        """Save the state before a step that failed; return how to repeat the step.

        All ranks call this. For the parameters, see `save_step`.
        """
        try:
            if progress.steps:  # else the state is that of the last checkpoint, or of the start
                self.save_step(progress, step)
        except UserError as error:
            return str(error)
        return "the same command repeats the step"

    def _save(self, path: Path, weights_path: Optional[Path], epoch: int, **within: Any) -> None:
        """Write a checkpoint to `path`, and without the optimizer to `weights_path`, if any.

        within: the entry "within" of a checkpoint within an epoch.
        """
        is_main, keep = distributed.is_main(), self.config.keep_checkpoints
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
            # Scores of this epoch that an earlier attempt has left are of other weights.
            remove_scores(self.folder, evaluation_name(epoch))
            if weights_path is not None:
                checkpoints.save(weights, weights_path)
            checkpoints.save({**weights, **training}, path)
            checkpoints.remove_oldest(self.folder, checkpoints.MIN_KEPT if keep == "all" else keep)

        distributed.run_on_main(write)
        self.output.upload()
