"""Decides whether a run starts anew or resumes from the newest checkpoint in its folder."""

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Optional

from pydantic import ValidationError

from captioning.config import Config, keys_of, parse_config
from captioning.files.writing import user_errors
from captioning.models import checkpoints
from captioning.rewards.registry import REWARDS
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line
from captioning.runtime.registry import load
from captioning.training.output_folder import OutputFolder
from captioning.training.run_state import batch_sizes, progress_of
from captioning.training.stored_run import free_path
from captioning.training.validation_history import reason_finished

# Schedules in which the learning rate of each epoch depends on the total number of epochs, so that
# the length of a run cannot change when the run resumes.
LENGTH_DEPENDENT = ("cosine", "cosine_steps", "cosine_restarts")

ADVICE = "set another output_dir, or resume=never, which moves that run aside"

# Patterns of files by which an earlier run in a folder is recognised.
RUN_FILES = ("checkpoint_*.pth", "weights_*.pth", "log.jsonl", "result")


def resume_content(config: Config, output: OutputFolder) -> Optional[dict[str, Any]]:
    """Return the content of the checkpoint to resume from, or None for a new run.

    The content is what `RunState` saves. All ranks call this, and rank 0 decides for all ranks.
    output: the run's folder; the caller has called `output.begin`. With resume=never, or if an
    earlier run has no checkpoint, moves the earlier run's files aside. Raises UserError if the run
    to resume has other settings.
    """
    folder = output.folder
    content = name = None
    if distributed.is_main():
        checkpoints.remove_leftovers(folder)
        newest = None if config.resume == "never" else checkpoints.read_newest(folder)
        if newest is None:
            _move_aside(config, output)
        else:
            content, name = newest.content, output.store_name(str(newest.path))
            _check_settings(config, content)
            _check_batches(config, content)
            for line in newest.log_lines:
                log_line(line)
    name = distributed.broadcast_from_main(name)
    if name is None:
        return None
    content = content or checkpoints.read(Path(output.local_path(name)))
    log_line(reason_finished(config, folder, progress_of(content).epoch) or f"resuming from {name}")
    return content


def _check_settings(config: Config, content: dict[str, Any]) -> None:
    """Raise UserError if a setting has changed that must be the same in the whole run.

    Such settings are the keys of role "run" (see `captioning.config.keys.ROLES`), the options of
    rewards, and keys of role "length" if finished epochs depend on the length. max_epoch must not
    be below the number of epochs that have begun. content: the content of the checkpoint.
    """
    saved = _saved_settings(config, content)
    # Options of rewards change training. Options of metrics do not, and are not compared.
    rewards = [load(REWARDS[name]) for name in config.reward or ()]
    options = [key for reward in rewards for key in reward.options]
    changes = _changes(config, saved, [*keys_of("run", type(config)), *options])
    if changes:
        raise UserError(f"{_label(config)} had other settings ({changes}); {ADVICE}")
    progress = progress_of(content)
    started = progress.epoch + (1 if progress.steps else 0)
    if started > config.max_epoch:
        verb = "started" if progress.steps else "finished"
        raise UserError(
            f"max_epoch is {config.max_epoch}, but {_label(config)} has {verb} {started} epochs; "
            + ADVICE
        )
    _check_length(config, _changes(config, saved, keys_of("length", type(config))))


def _saved_settings(config: Config, content: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration in a checkpoint, with defaults for keys that are newer than it."""
    try:
        return parse_config(content["config"]).model_dump()
    except ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        raise UserError(
            f"{_label(config)} has a setting that this version does not know, {key!r}; {ADVICE}"
        ) from error


def _changes(config: Config, saved: dict[str, Any], keys: Iterable[str]) -> str:
    """Return a text with the old and the new value of each of the keys that has changed."""
    current = config.model_dump()
    # If the earlier run trained another kind of captioner, compare only the common keys.
    changed = [key for key in dict.fromkeys(keys) if key in saved and saved[key] != current[key]]
    if current["skip_bad_images"] and "skip_bad_images" in changed:
        # Turning skip_bad_images on is allowed: an unreadable image would have stopped the run, so
        # that the finished steps had none.
        changed.remove("skip_bad_images")
    return "; ".join(f"{key} was {saved[key]!r}, is {current[key]!r}" for key in changed)


def _check_length(config: Config, changes: str) -> None:
    """Raise UserError if the length has changed and finished epochs depend on it."""
    if not changes:
        return
    if config.lr_schedule in LENGTH_DEPENDENT:
        raise UserError(
            f"{_label(config)} had another length ({changes}), and with lr_schedule "
            f"{config.lr_schedule} the learning rates of its earlier epochs depend on the length; "
            "set the old value, or start again with resume=never, which moves that run aside; with "
            "lr_schedule=exponential or plateau, the length can be changed later"
        )
    if getattr(config, "teacher_forcing_middle", None) is not None:
        raise UserError(
            f"{_label(config)} had another length ({changes}), and with teacher_forcing_middle the "
            "input words of its earlier epochs depend on the length; set the old value, or set "
            "resume=never, which moves that run aside"
        )


def _check_batches(config: Config, content: dict[str, Any]) -> None:
    """Raise UserError if the interruption would change the batches of the remaining steps.

    batch_size, the number of processes and accumulation_steps may change if their product, the
    number of images per step, stays the same.
    """
    sizes_now = batch_sizes(config)
    sizes_before = content.get("batches", sizes_now)
    images_before, images_now = math.prod(sizes_before.values()), math.prod(sizes_now.values())
    # bucket_batches puts captions of similar length into batches of batch_size * processes, a size
    # that must not change either. It is images per step / accumulation_steps, so that comparing
    # accumulation_steps suffices.
    same_accumulation = sizes_before["accumulation_steps"] == sizes_now["accumulation_steps"]
    if images_before == images_now and (same_accumulation or not config.bucket_batches):
        return
    alternative = f", or others with the product {images_before}"
    raise UserError(
        f"{_label(config)} stopped with {images_before} images per step ({_listed(sizes_before)}); "
        f"with {images_now} ({_listed(sizes_now)}) its remaining steps would have other batches: "
        f"set the old values{'' if images_before == images_now else alternative}"
    )


def check_items(config: Config, content: dict[str, Any], num_items: int) -> None:
    """Raise UserError if the training data has another number of items than before."""
    before = content.get("items", num_items)
    if before != num_items:
        raise UserError(
            f"{_label(config)} had {before} training items, now there are {num_items}: restore the "
            f"training data; {ADVICE}"
        )


def _listed(sizes: dict[str, int]) -> str:
    return ", ".join(f"{number} {key}" for key, number in sizes.items())


def _label(config: Config) -> str:
    return f"the run in {config.output_dir}"


def _move_aside(config: Config, output: OutputFolder) -> None:
    """Rename the folder if it has files of a run. Raises UserError if it also has the data."""
    folder = Path(os.path.abspath(output.folder))
    if not any(path for pattern in RUN_FILES for path in folder.glob(pattern)):
        return
    for kept in map(os.path.abspath, (os.curdir, config.image_root, config.ann_root)):
        if folder in (Path(kept), *Path(kept).parents):
            raise UserError(
                f"output_dir: {folder} has files of an earlier run, and cannot be moved aside, "
                f"because {kept} is in it: set another output_dir"
            )
    if output.stored_run and (aside := output.stored_run.move_aside()):
        log_line(f"moved the files of {output.address} to {aside}")
    target = free_path(folder)
    with user_errors(target):
        folder.rename(target)
    log_line(f"moved the files of {folder} to {target}")
