"""Where a run begins: anew, or after the last whole epoch of the run in its folder."""

from pathlib import Path
from typing import Any, Optional

from captioning import checkpointing, distributed
from captioning.classic_keys import ClassicKeys
from captioning.config import Config
from captioning.errors import UserError
from captioning.run_log import say
from captioning.validation_history import why_over

# What decides what a run becomes: with another value it would be another run.
FIXED_KEYS = (
    *("objective", "label_smoothing", "first_token_mle", "random_subset_size"),
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
        newest = None if config.resume == "never" else checkpointing.read_newest(folder)
        if newest is None:
            _move_aside(folder)
        else:
            path, content, problems = newest
            _check_settings(config, content["config"], folder)
            for line in problems:
                say(line)
    path = distributed.broadcast_from_main(path)
    if path is None:
        return None
    content = content or checkpointing.read(path)
    done = content["epoch"] + 1
    if done > config.max_epoch:
        raise UserError(
            f"max_epoch is {config.max_epoch}, but the run in {folder} has run {done} epochs; give "
            "another output_dir, or resume=never, which moves that run aside"
        )
    over = why_over(config, folder, done) if distributed.is_main() else None
    say(over or f"resuming from {path}")
    return content


def _check_settings(config: Config, before: dict[str, Any], folder: Path) -> None:
    before = Config.model_validate(before).model_dump()  # with keys that came later, as defaults
    now = config.model_dump()
    changed = [key for key in FIXED_KEYS if before[key] != now[key]]
    if changed:
        told = "; ".join(f"{key} was {before[key]!r}, is {now[key]!r}" for key in changed)
        raise UserError(
            f"the run in {folder} had other settings ({told}); give another output_dir, "
            "or resume=never, which moves that run aside"
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
