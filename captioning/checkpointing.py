"""A run's own checkpoints: written whole or not at all, found again, the oldest removed."""

import os
import re
import shutil
from pathlib import Path
from typing import Any, Optional

import torch

from captioning.errors import UserError

BEST = "checkpoint_best.pth"
_NUMBERED = re.compile(r"checkpoint_(\d+)\.pth")


def save_atomically(content: dict[str, Any], path: Path) -> None:
    """torch.save that replaces `path` only by a file that is complete and on disk.

    Raises UserError, with what was there left as it was.
    """
    staged = path.with_name(path.name + ".tmp")
    try:
        with open(staged, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(staged, path)
    except (OSError, RuntimeError) as error:
        staged.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {str(error).splitlines()[0]}") from error


def epoch_path(folder: Path, epoch: int) -> Path:
    return folder / f"checkpoint_{epoch:02d}.pth"


def numbered(folder: Path) -> list[tuple[int, Path]]:
    """The epochs that have a checkpoint, in order."""
    found = [(_NUMBERED.fullmatch(path.name), path) for path in folder.glob("checkpoint_*.pth")]
    return sorted((int(match[1]), path) for match, path in found if match)


def remove_oldest(folder: Path, keep: int) -> None:
    for _, path in numbered(folder)[:-keep]:
        path.unlink()


def keep_as_best(folder: Path, epoch: int) -> None:
    """Let checkpoint_best.pth be that of `epoch`: a hard link, or a copy where links cannot be."""
    staged = folder / (BEST + ".tmp")
    staged.unlink(missing_ok=True)
    try:
        os.link(epoch_path(folder, epoch), staged)
    except OSError:
        shutil.copyfile(epoch_path(folder, epoch), staged)
    os.replace(staged, folder / BEST)


def read(path: Path) -> dict[str, Any]:
    """A run's own checkpoint on the CPU. Raises UserError for one that is not whole."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        content["model"], content["optimizer"], content["epoch"], content["config"]
    except FileNotFoundError as error:
        raise UserError(
            f"{path} is not on this machine; output_dir must be on a disk that all machines share"
        ) from error
    except Exception as error:  # a damaged file can raise almost anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{path} cannot be read: {reason}") from error
    return content


def read_newest(folder: Path) -> Optional[tuple[Path, dict[str, Any], list[str]]]:
    """The newest checkpoint that can be read, with a line for each newer one that cannot.

    None where there is no checkpoint; UserError where there are some, and none can be read.
    """
    problems: list[str] = []
    for _, path in reversed(numbered(folder)):
        try:
            return path, read(path), problems
        except UserError as error:
            problems.append(f"passing over a checkpoint: {error}")
    if problems:
        raise UserError(
            f"none of the checkpoints in {folder} can be read ({problems[0]}); "
            "start anew with resume=never or another output_dir"
        )
    return None
