"""Where a run starts: from the beginning, or from the newest checkpoint in its folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from pydantic import ValidationError

from captioning.config import Config, keys_of, parse_config
from captioning.models import checkpoints
from captioning.rewards.registry import REWARDS
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line
from captioning.runtime.registry import load
from captioning.training.output_folder import OutputFolder, free_name
from captioning.training.run_state import batch_sizes, progress_of, saved_batch_sizes
from captioning.training.validation_history import why_over

# Schedules whose rate in each epoch depends on the number of epochs.
SPANNING = ("cosine", "cosine_steps", "cosine_restarts")

# Signs of an earlier run in a folder.
REMAINS = ("checkpoint_*.pth", "weights_*.pth", "log.jsonl", "result")


def starting_point(
    config: Config, output: Optional[OutputFolder] = None
) -> Optional[dict[str, Any]]:
    """The checkpoint to resume from, None for a new run; the same on every process.

    output: the run's folder, on which `begin` was called. Rank 0 decides. Files of an earlier run
    in the folder of a new one are moved aside. Raises UserError where the settings differ from
    those of the run that would be resumed.
    """
    output = output or OutputFolder(config.output_dir)
    folder = output.folder
    content = path = None
    if distributed.is_main():
        checkpoints.tidy(folder)
        newest = None if config.resume == "never" else checkpoints.read_newest(folder)
        if newest is None:
            _move_aside(output)
        else:
            path, content, problems = newest
            _check_settings(config, content)
            _check_batches(config, content)
            for line in problems:
                log_line(line)
    name = distributed.broadcast_from_main(path and output.name_of(str(path)))
    if name is None:
        return None
    content = content or checkpoints.read(Path(output.here(name)))
    over = why_over(config, folder, progress_of(content).epoch) if distributed.is_main() else None
    log_line(over or f"resuming from {name}")
    return content


def _keys_of_rewards(config: Config) -> list[str]:
    """The rewards' options: they change the results, while metrics' options only score."""
    return [key for name in config.reward or () for key in load(REWARDS[name]).Options.model_fields]


def _check_settings(config: Config, content: dict[str, Any]) -> None:
    """Refuse changes of keys of the role "run", and of "length" under a cosine."""
    try:
        # Keys that a newer version has added get their defaults.
        before = parse_config(content["config"]).model_dump()
    except ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        raise UserError(
            f"{_named(config)} has settings that are unknown here, the first is {key!r}; give "
            "another output_dir, or resume=never, which moves that run aside"
        ) from error
    now = config.model_dump()

    def changes(role: str, more: Sequence[str] = ()) -> str:
        keys = (*keys_of(role, type(config)), *more)
        # Of another captioner's run only the shared keys can be compared.
        changed = [key for key in keys if key in before and before[key] != now[key]]
        if now["skip_bad_images"] and "skip_bad_images" in changed:
            changed.remove("skip_bad_images")  # the run has met no bad image so far
        return "; ".join(f"{key} was {before[key]!r}, is {now[key]!r}" for key in changed)

    others = changes("run", _keys_of_rewards(config))
    if others:
        raise UserError(
            f"{_named(config)} had other settings ({others}); give another output_dir, "
            "or resume=never, which moves that run aside"
        )
    progress = progress_of(content)
    begun = progress.epoch + (progress.steps > 0)
    if begun > config.max_epoch:
        verb = "run" if begun == progress.epoch else "begun"
        raise UserError(
            f"max_epoch is {config.max_epoch}, but {_named(config)} has {verb} {begun} epochs; "
            "give another output_dir, or resume=never, which moves that run aside"
        )
    if changes("length") and config.lr_schedule in SPANNING:
        raise UserError(
            f"{_named(config)} was to be of another length ({changes('length')}): under "
            f"lr_schedule {config.lr_schedule} its epochs so far would have had other learning "
            "rates; set it as it was, or give resume=never, which moves that run aside, and from "
            "the start an lr_schedule whose past does not change (exponential or plateau)"
        )
    if changes("length") and getattr(config, "teacher_forcing_middle", None) is not None:
        raise UserError(
            f"{_named(config)} was to be of another length ({changes('length')}): with "
            "teacher_forcing_middle its epochs so far would have read other words; set it as it "
            "was, or give resume=never, which moves that run aside"
        )


def _check_batches(config: Config, content: dict[str, Any]) -> None:
    """Refuse another number of images a step, which would change the remaining batches."""
    before, now = saved_batch_sizes(content), batch_sizes(config)
    if before is None:  # older versions saved batch sizes only within an epoch
        return
    loaded = [b["batch_size"] * b["processes"] for b in (before, now)]
    taken = [size * b["accumulation_steps"] for size, b in zip(loaded, (before, now))]
    # bucket_batches sorts captions by length within the images that are loaded at once.
    if taken[0] == taken[1] and (loaded[0] == loaded[1] or not config.bucket_batches):
        return
    was, is_now = (", ".join(f"{value} {key}" for key, value in b.items()) for b in (before, now))
    place, rest = f"with {taken[0]} images a step", "would be of another run"
    if content.get("within"):
        place = f"within epoch {content['epoch'] + 1}, {place}"
        rest = "of the epoch would not have the images that are left of it"
    raise UserError(
        f"{_named(config)} stopped {place} ({was}); with {taken[1]} ({is_now}) the rest {rest}: "
        "set them so that they make as many, or as they were"
    )


def _named(config: Config) -> str:
    return f"the run in {config.output_dir}"


def _move_aside(output: OutputFolder) -> None:
    folder = output.folder
    if not any(path for pattern in REMAINS for path in folder.glob(pattern)):
        return
    if aside := output.move_aside():
        log_line(f"copied what was in {output.address} to {aside}")
    target = free_name(folder)
    try:
        folder.rename(target)
    except OSError as error:
        raise UserError(f"cannot move {folder} to {target}: {error.strerror}") from error
    log_line(f"moved what was in {folder} to {target}")
