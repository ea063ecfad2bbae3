"""What a run leaves to read: its configuration, JSON lines, TensorBoard curves, a progress bar."""

import contextlib
import errno
import json
import math
import os
import platform
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from captioning.config import Config, write_config
from captioning.files.stores import without_secrets
from captioning.files.writing import refusals_told, write_json, write_text
from captioning.metrics.scoring import library_versions
from captioning.runtime.distributed import is_main, world_size

# An address in a word: in quotes up to the next, else up to what ends an item, or to another one.
_ADDRESS = re.compile(
    r"""(["'])?\w[\w+.-]*://.*?"""
    r"""(?=(?(1)\1|(?:[\]}]*(?:,\s|$)|[\s,\[\]{}"']+\w[\w+.-]*://))|$)""",
    re.DOTALL,
)


def command(words: Sequence[str]) -> str:
    """As a shell takes it, with addresses, wherever in a word they are, without their secrets."""
    return shlex.join(_ADDRESS.sub(lambda found: without_secrets(found[0]), w) for w in words)


def record_run(config: Config, folder: Path, **more: Any) -> None:
    """Write config.yaml and run.json (command, versions, `more`). Raises UserError."""
    if is_main():
        libraries = ("torch", "torchvision", "transformers", "timm", "pycocoevalcap")
        record = {
            "command": command([sys.executable, *sys.argv]),
            "python": platform.python_version(),
            "processes": world_size(),
            "versions": library_versions(*libraries),
            **more,
        }
        write_json(record, folder / "run.json")
        write_config(config, folder / "config.yaml")


class RunLog:
    """log.jsonl and tensorboard/ in a run's folder, from the first line on; on rank 0 alone.

    epoch, step: where the run goes on. What an earlier process logged of later ones is removed, so
    that the log is that of a run that was never stopped; without them all is kept but a line that
    a kill cut off. Raises UserError where the folder cannot be written.
    """

    def __init__(self, folder: Path, epoch: float = math.inf, step: float = math.inf):
        self.folder, self.path = folder, folder / "log.jsonl"
        self.file = self.board = None
        self.step = step
        lines = read_log(self.path) if is_main() else []
        lines = [line for line in lines if {"event", "step"} <= line.keys()]
        self.kept = [line for line in lines if _is_before(line, epoch, step)]
        self.written = {(line["event"], line["step"]) for line in self.kept}

    def has(self, event: str, step: int) -> bool:
        """Whether there is such a line; False on every rank but 0."""
        return (event, step) in self.written

    def _open(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if self.path.exists():
            write_text("".join(json.dumps(line) + "\n" for line in self.kept), self.path)
        with refusals_told(self.path):
            # Without a buffer: a line is one write, which a kill cannot cut in two.
            self.file = open(self.path, "ab", buffering=0)  # noqa: SIM115
            later = self.step + 1 if math.isfinite(self.step) else None
            self.board = SummaryWriter(str(self.folder / "tensorboard"), purge_step=later)

    def write(self, event: str, step: int, values: dict[str, float], **more: Any) -> None:
        """One line {"event", "step", ..., values}, and a curve event/name for each value.

        A value that is not finite, such as a gradient's norm that overflowed, is left out. Raises
        UserError where the disk takes no more.
        """
        if not is_main():
            return
        if self.file is None:
            self._open()
        values = {name: value for name, value in values.items() if math.isfinite(value)}
        line = {"event": event, "step": step, **more, **values}
        with refusals_told(self.path):
            text = (json.dumps(line) + "\n").encode()
            if self.file.write(text) < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            for name, value in values.items():
                self.board.add_scalar(f"{event}/{name}", value, step)
        self.written.add((event, step))

    def flush(self) -> None:
        """Let what was written be in the files."""
        if self.file is not None:
            with contextlib.suppress(OSError):  # as in `close`
                self.board.flush()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            with contextlib.suppress(OSError):  # a full disk, of which `write` has told
                self.board.close()


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log.jsonl, of which there may be none; one that was cut off is passed over."""
    if path.exists():
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                line = json.loads(text)
                if isinstance(line, dict):
                    yield line


def _is_before(line: dict[str, Any], epoch: int, step: int) -> bool:
    return line["step"] <= step if line["event"] == "step" else line["step"] < epoch
