"""Where a run begins: anew, or at the newest checkpoint of the run in its folder."""

from pathlib import Path
from typing import Any, Optional

from pydantic import ValidationError

from captioning.config import Config
from captioning.config.classic_keys import ClassicKeys
from captioning.models import checkpoints
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.runtime.progress import say
from captioning.training.run_state import batches, place_of
from captioning.training.validation_history import why_over

# What decides what a run becomes: with another value it would be another run.
FIXED_KEYS = (
    *("objective", "label_smoothing", "first_token_mle", "first_token_shift"),
    "random_subset_size",
    *("init_lr", "min_lr", "weight_decay", "warmup_steps", "warmup_lr", "clip_grad_norm"),
    *("dataset", "train_file", "captions_per_image", "max_words", "max_tokens", "image_size"),
    *("augmentation", "pretrained", "vit", "med_config", "prompt", "seed"),
    *("optimizer", "clip_grad_value", "lr_schedule", "lr_decay", "lr_patience", "bucket_batches"),
    *(key for key in ClassicKeys.model_fields if key != "encoder_weights"),
)

# Signs of an earlier run in a folder.
REMAINS = ("checkpoint_*.pth", "log.jsonl", "result")


def starting_point(config: Config) -> Optional[dict[str, Any]]:
    """The checkpoint to go on from, None for a new run; the same on every process.

    Rank 0 decides. What an earlier run left where a new one begins is moved aside, not lost.
    Raises UserError where the settings are not those of the run that would be resumed.
    """
    folder = Path(config.output_dir)
    content = path = None
    if distributed.is_main():
        checkpoints.tidy(folder)
        newest = None if config.resume == "never" else checkpoints.read_newest(folder)
        if newest is None:
            _move_aside(folder)
        else:
            path, content, problems = newest
            _check_settings(config, content["config"], folder)
            _check_batches(config, content, folder)
            for line in problems:
                say(line)
    path = distributed.broadcast_from_main(path)
    if path is None:
        return None
    content = content or checkpoints.read(path)
    place = place_of(content)
    begun = place.epoch + (place.steps > 0)
    if begun > config.max_epoch:
        verb = "run" if begun == place.epoch else "begun"
        raise UserError(
            f"max_epoch is {config.max_epoch}, but the run in {folder} has {verb} {begun} epochs; "
            "give another output_dir, or resume=never, which moves that run aside"
        )
    over = why_over(config, folder, place.epoch) if distributed.is_main() else None
    say(over or f"resuming from {path}")
    return content


def _check_settings(config: Config, before: dict[str, Any], folder: Path) -> None:
    try:
        before = Config.model_validate(before).model_dump()  # keys that came later as defaults
    except ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        raise UserError(
            f"the run in {folder} has settings that are none here, the first is {key!r}; give "
            "another output_dir, or resume=never, which moves that run aside"
        ) from error
    now = config.model_dump()
    changed = [key for key in FIXED_KEYS if before[key] != now[key]]
    if changed:
        told = "; ".join(f"{key} was {before[key]!r}, is {now[key]!r}" for key in changed)
        raise UserError(
            f"the run in {folder} had other settings ({told}); give another output_dir, "
            "or resume=never, which moves that run aside"
        )


def _check_batches(config: Config, content: dict[str, Any], folder: Path) -> None:
    """Within an epoch the steps still to come must take the images that they would have taken."""
    within = content.get("within")
    if within is None:
        return
    before, now = within["batches"], batches(config)
    loaded = [b["batch_size"] * b["processes"] for b in (before, now)]
    taken = [size * b["accumulation_steps"] for size, b in zip(loaded, (before, now))]
    # Captions of similar length are put together in what is loaded at once.
    if taken[0] == taken[1] and (loaded[0] == loaded[1] or not config.bucket_batches):
        return
    was, is_now = (", ".join(f"{value} {key}" for key, value in b.items()) for b in (before, now))
    raise UserError(
        f"the run in {folder} stopped within epoch {content['epoch'] + 1}, with {taken[0]} images "
        f"a step ({was}); with {taken[1]} ({is_now}) the rest of the epoch would not have the "
        "images that are left of it: set them so that they make as many, or as they were"
    )


def _move_aside(folder: Path) -> None:
    if not any(path for pattern in REMAINS for path in folder.glob(pattern)):
        return
    number = 1
    while (target := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    try:
        folder.rename(target)
    except OSError as error:
        raise UserError(f"cannot move {folder} to {target}: {error.strerror}") from error
    say(f"moved what was in {folder} to {target}")
