"""The log of a run: its configuration and command, JSON lines and TensorBoard curves.

To log another value of a step, add it to the parts of the loss, which are averaged over the tokens
of all processes and accumulated batches, or to `StepResult.values`, which are logged as they are.
TensorBoard then shows a curve of it. The report shows a curve of it if CURVES has a line for it.
"""

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
from captioning.files.writing import user_errors, write_json, write_text
from captioning.metrics.scoring import library_versions
from captioning.runtime.distributed import is_main, world_size

# Values of steps that the report draws besides the objectives, each with a title and an axis label.
CURVES = {
    "reward": ("Reward in training", "reward per caption"),
    "length": ("Length in training", "words per sampled caption"),
    "kl": ("KL to the start", "nats per caption"),
}

# An address within an argument. It ends at its closing quote; without quotes, at the end of a list
# item or at the next address.
_ADDRESS = re.compile(
    r"""(["'])?\w[\w+.-]*://.*?"""
    r"""(?=(?(1)\1|(?:[\]}]*(?:,\s|$)|[\s,\[\]{}"']+\w[\w+.-]*://))|$)""",
    re.DOTALL,
)


def command(arguments: Sequence[str]) -> str:
    """Return the arguments as a line for a shell, without the secrets of addresses in them."""
    return shlex.join(
        _ADDRESS.sub(lambda match: without_secrets(match[0]), argument) for argument in arguments
    )


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
    """Writes log.jsonl and tensorboard/ in a run's folder, on rank 0. Other ranks write nothing.

    The first `write` creates the files. epoch, step: where the run resumes. Lines after this point,
    which an interrupted process has written, are removed. Raises UserError if the folder cannot be
    written.
    """

    def __init__(self, folder: Path, epoch: int, step: int):
        self.folder, self.path = folder, folder / "log.jsonl"
        self.file = self.tensorboard = None
        self.step = step
        lines = read_log(self.path) if is_main() else []
        lines = [line for line in lines if {"event", "step"} <= line.keys()]
        self.kept_lines = [line for line in lines if _is_before(line, epoch, step)]
        self.written = {(line["event"], line["step"]) for line in self.kept_lines}

    def has(self, event: str, step: int) -> bool:
        """Return whether the log has a line of this event and step. False on other ranks than 0."""
        return (event, step) in self.written

    def _open(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if self.path.exists():
            write_text("".join(json.dumps(line) + "\n" for line in self.kept_lines), self.path)
        with user_errors(self.path):
            # Unbuffered, so that a line is one write, which a kill cannot cut in two.
            self.file = open(self.path, "ab", buffering=0)  # noqa: SIM115
            folder = str(self.folder / "tensorboard")
            self.tensorboard = SummaryWriter(folder, purge_step=self.step + 1)

    def write(self, event: str, step: int, values: dict[str, float], **more: Any) -> None:
        """Write a line {"event", "step", ..., values}, and a point of the curve of each value.

        Values that are not finite are left out, such as the norm of a gradient that overflowed.
        Raises UserError if the disk is full.
        """
        if not is_main():
            return
        if self.file is None:
            self._open()
        values = {name: value for name, value in values.items() if math.isfinite(value)}
        line = {"event": event, "step": step, **more, **values}
        with user_errors(self.path):
            text = (json.dumps(line) + "\n").encode()
            if self.file.write(text) < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            for name, value in values.items():
                self.tensorboard.add_scalar(f"{event}/{name}", value, step)
        self.written.add((event, step))

    def flush(self) -> None:
        """Write TensorBoard's buffer to its file."""
        if self.file is not None:
            with contextlib.suppress(OSError):  # as in `close`
                self.tensorboard.flush()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            with contextlib.suppress(OSError):  # a full disk; `write` has raised that error already
                self.tensorboard.close()


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a log.jsonl, if it exists. Lines that a kill cut off are left out."""
    if path.exists():
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                line = json.loads(text)
                if isinstance(line, dict):
                    yield line


def _is_before(line: dict[str, Any], epoch: int, step: int) -> bool:
    return line["step"] <= step if line["event"] == "step" else line["step"] < epoch
