"""Writes the checkpoints of a run atomically, and finds, verifies and removes them.

The files in a run's folder are:

- checkpoint_04.pth: written at the end of epoch 4
- checkpoint_04_step00001200.pth: written within epoch 4, after 1200 steps of the run
- weights_04.pth: only the weights of epoch 4 (`keep_checkpoints: all`)
- checkpoint_best.pth: a hard link to the best epoch's checkpoint, or a copy
"""

import math
import os
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import torch

from BLIP.checkpoint import check_finite, holds_tensors, read_pickled
from captioning.files.cache import cache_key
from captioning.files.stores import check_address, is_bucket_address, names_in, stamp, stamps
from captioning.files.writing import (
    SUFFIX,
    atomic_write,
    sync_folder,
    unfinished_writes,
    user_errors,
)
from captioning.runtime.errors import UserError, one_line

BEST = "checkpoint_best.pth"
MIN_KEPT = 2  # newest checkpoints that are always kept, since one may be damaged
KEYS = {"model", "optimizer", "config", "epoch"}  # of every checkpoint to resume from
_STEM = re.compile(r"checkpoint_(\d+)(?:_step(\d+))?")  # file name without suffix: epoch, step


def save(content: dict[str, Any], path: Path) -> None:
    """Write `content` with torch.save to a temporary file, then rename the file to `path`.

    The file is renamed when it is on disk. Raises UserError, or KeyboardInterrupt when Ctrl-C is
    pressed twice; an earlier file at `path` is then unchanged.
    """
    try:
        with atomic_write(path) as file:
            torch.save(content, file)
    except (OSError, RuntimeError) as error:
        reason = error
        # torch raises a RuntimeError after the OSError of a full disk, and after Ctrl-C.
        while not isinstance(reason, (OSError, KeyboardInterrupt)) and reason.__context__:
            reason = reason.__context__
        if isinstance(reason, KeyboardInterrupt):
            raise reason from None
        raise UserError(
            f"cannot write {path}: {getattr(reason, 'strerror', None) or one_line(reason)}"
        ) from error


def epoch_path(folder: Path, epoch: int) -> Path:
    return folder / f"checkpoint_{epoch:02d}.pth"


def weights_path(folder: Path, epoch: int) -> Path:
    return folder / f"weights_{epoch:02d}.pth"


def step_path(folder: Path, epoch: int, step: int) -> Path:
    """Return the path of a checkpoint within an epoch. step: counted over all epochs."""
    return folder / f"checkpoint_{epoch:02d}_step{step:08d}.pth"


def saved(folder: Path) -> list[Path]:
    """Return all checkpoints in a run's folder, the newest last, without checkpoint_best.pth."""
    paths = folder.glob("checkpoint_*.pth")
    return sorted((path for path in paths if _STEM.fullmatch(path.stem)), key=_position)


def weights_of(folder: Path, epoch: int) -> Optional[Path]:
    """Return the path of a file with the weights at an epoch's end; None if there is none."""
    paths = (epoch_path(folder, epoch), weights_path(folder, epoch))
    return next(filter(Path.exists, paths), None)


def best(folder: Path) -> Optional[Path]:
    """Return the best checkpoint in a run's folder; None if there is none yet."""
    path = folder / BEST
    return path if path.exists() else None


def resolve(name: str) -> str:
    """Return the best checkpoint in a run's folder, or the newest if there is no best one yet.

    name: the folder, on disk or in an object store. Any other name, such as that of a file, of a
    folder of transformers or of a model of the hub, is returned unchanged, even if it does not
    exist. Raises UserError for a folder without a checkpoint.
    """
    names = ()
    if is_bucket_address(name):
        check_address(name)
        names = names_in(name)
    elif os.path.isdir(name):  # Path.is_dir fails for long names
        names = os.listdir(name)
    paths = [Path(n) for n in names if re.fullmatch(rf"{_STEM.pattern}\.pth", n)]
    chosen = BEST if BEST in names else max(paths, key=_position, default=None)
    is_other = not {"adapter_config.json", "config.json"}.isdisjoint(names)
    if names and not chosen and not is_other:
        raise UserError(f"{name} contains no checkpoint of a run: give a file")
    return f"{name.rstrip('/')}/{chosen}" if chosen else name


def version_of(name: str) -> Union[float, str, None]:
    """Return a value that changes when the checkpoint `name` is rewritten; None if unknown.

    It is the modification time of a file on disk, or the version of an object or folder in a store.
    """
    if is_bucket_address(name):
        files = stamps(name)  # of a folder; none of a file
        return cache_key(repr(files), 16) if files else stamp(name)[1]
    return os.path.getmtime(name) if os.path.exists(name) else None


def epoch_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of complete epochs, the newest last."""
    return [path for path in saved(folder) if _position(path)[1] == math.inf]


def _position(path: Path) -> tuple[int, float]:
    """Return (epoch, step) of a checkpoint, a sort key. The step at an epoch's end is infinite."""
    epoch, step = _STEM.fullmatch(path.stem).groups()
    return int(epoch), math.inf if step is None else int(step)


def remove_oldest(folder: Path, keep: int) -> None:
    """Remove old checkpoints. Raises UserError.

    Keeps the newest `keep` checkpoints of complete epochs, and the newest MIN_KEPT of any kind.
    """
    kept = {*epoch_checkpoints(folder)[-keep:], *saved(folder)[-MIN_KEPT:]}
    for path in saved(folder):
        if path not in kept:
            with user_errors(path):
                path.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of a killed run. Raises UserError."""
    for path in unfinished_writes(folder):
        with user_errors(path):
            path.unlink()


def keep_as_best(folder: Path, epoch: int) -> None:
    """Make checkpoint_best.pth a hard link to the checkpoint of `epoch`, or a copy of it.

    A copy is made if the file system has no hard links.
    """
    source = weights_of(folder, epoch) or epoch_path(folder, epoch)
    temporary = folder / f".{BEST}{SUFFIX}"
    with user_errors(folder / BEST):
        temporary.unlink(missing_ok=True)
        try:
            os.link(source, temporary)
        except OSError:
            with open(source, "rb") as file, atomic_write(folder / BEST) as copy:
                shutil.copyfileobj(file, copy)
            return
        os.replace(temporary, folder / BEST)
        # If both names already link to the same file, os.replace does nothing: remove the link.
        temporary.unlink(missing_ok=True)
        sync_folder(folder)


def read(path: Path) -> dict[str, Any]:
    """Read a run's checkpoint to the CPU; return the content that `Checkpointing` saved.

    Raises UserError for an incomplete checkpoint.
    """
    try:
        content = read_pickled(path, mapped=False)
        is_of_run = isinstance(content, dict) and content.keys() >= KEYS
        if not is_of_run or not holds_tensors(content["model"]):
            raise ValueError(f"{path} is not a checkpoint of a run")
        check_finite(content["model"], str(path))
    except FileNotFoundError as error:
        raise UserError(
            f"{path} is not on this machine; output_dir must be on a disk that all machines share"
        ) from error
    except ValueError as error:
        raise UserError(str(error)) from error
    return content


def check_whole(path: Path) -> None:
    """Raise UserError if a bit of a checkpoint has changed, by the CRC-32 of each part of it."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
            # torch would take a record with attributes for a folder, and not read it.
            damaged = damaged or any(record.external_attr for record in archive.infolist())
    except Exception as error:  # zipfile raises many types
        raise UserError(f"{path} is damaged: {one_line(error)}") from error
    if damaged:
        raise UserError(f"{path} is damaged: its content differs from what was written")


class NewestCheckpoint(NamedTuple):
    """The newest undamaged checkpoint. log_lines: a line for each newer one, which is damaged."""

    path: Path
    content: dict[str, Any]
    log_lines: list[str]


def read_newest(folder: Path) -> Optional[NewestCheckpoint]:
    """Read the newest undamaged checkpoint. Damaged newer checkpoints get the suffix .bad.

    Returns None if there are no checkpoints. If all checkpoints are damaged, raises UserError and
    renames none.
    """
    problems = {}  # {damaged checkpoint: reason}
    for path in reversed(saved(folder)):
        try:
            check_whole(path)
            content = read(path)
        except UserError as error:
            problems[path] = str(error)
            continue
        lines = [f"skipping a checkpoint: {reason}" for reason in problems.values()]
        for damaged in problems:
            with user_errors(damaged):
                os.replace(damaged, damaged.with_name(f"{damaged.name}.bad"))
        return NewestCheckpoint(path, content, lines)
    if problems:
        raise UserError(
            f"{folder} has no checkpoint that can be read ({next(iter(problems.values()))}); set "
            "another output_dir"
        )
    return None
