"""What a run leaves to read: its configuration, JSON lines, TensorBoard curves, a progress bar."""

import json
import math
import os
import platform
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, Optional

from tqdm import tqdm

from captioning.config import Config, write_config
from captioning.distributed import is_main, world_size
from captioning.json_file import write_json

LIBRARIES = ("torch", "torchvision", "transformers", "timm", "pycocoevalcap")


def say(line: str) -> None:
    """Print a line for the user, once, however many processes there are."""
    if is_main():
        tqdm.write(line, file=sys.stderr)


def record_run(config: Config, folder: Path, **more: Any) -> None:
    """Write config.yaml and run.json (command, versions, `more`). Raises UserError."""
    if is_main():
        record = {
            "command": shlex.join([sys.executable, *sys.argv]),
            "python": platform.python_version(),
            "processes": world_size(),
            "versions": dict(_versions()),
            **more,
        }
        write_json(record, folder / "run.json")
        write_config(config, folder / "config.yaml")


def _versions() -> Iterator[tuple[str, Optional[str]]]:
    for name in LIBRARIES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            yield name, None


class RunLog:
    """log.jsonl and tensorboard/ in a run's folder, from the first line on; on rank 0 alone."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.file = self.board = None

    def _open(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        path = self.folder / "log.jsonl"
        cut_off = _ends_within_a_line(path)
        self.file = open(path, "a", encoding="utf-8")  # noqa: SIM115
        if cut_off:  # by a kill in the middle of it, which would swallow the next
            self.file.write("\n")
        self.board = SummaryWriter(str(self.folder / "tensorboard"))

    def write(self, event: str, step: int, values: dict[str, float], **more: Any) -> None:
        """One line {"event", "step", ..., values}, and a curve event/name for each value.

        A value that is not finite, such as a gradient's norm that overflowed, is left out.
        """
        if not is_main():
            return
        if self.file is None:
            self._open()
        values = {name: value for name, value in values.items() if math.isfinite(value)}
        line = {"event": event, "step": step, **more, **values}
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()
        for name, value in values.items():
            self.board.add_scalar(f"{event}/{name}", value, step)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.board.close()


def _ends_within_a_line(path: Path) -> bool:
    if not path.exists() or path.stat().st_size == 0:
        return False
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


_work: list[str] = []  # what the bars belong to, the outermost first


@contextmanager
def part_of(work: str) -> Iterator[None]:
    """Let the bars within say which part of some larger work they belong to."""
    _work.append(work)
    try:
        yield
    finally:
        _work.pop()


def progress(total: int, description: str, unit: str = "img") -> tqdm:
    """A bar that counts images (or `unit`), how many a second and the time left; on rank 0 alone.

    Where nobody watches (a log file), it prints a line every half minute instead of ten a second.
    """
    interval = 0.1 if sys.stderr.isatty() else 30.0
    return tqdm(
        total=total,
        desc=" ".join([*_work, description]),
        unit=unit,
        disable=not is_main(),
        mininterval=interval,
        dynamic_ncols=True,
    )
