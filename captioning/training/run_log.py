"""The log of a run: its configuration and command, JSON lines, TensorBoard curves.

To log another value of a step, add it to the parts of the loss or to `Stepped.values` (`step.py`).
It gets a TensorBoard curve, and with a line in CURVES one in the report.
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

# Values of steps that the report draws beside the objectives: title, label of the axis.
CURVES = {
    "reward": ("Reward in training", "reward a caption"),
    "length": ("Length in training", "words a sampled caption"),
    "kl": ("KL to the start", "nats a caption"),
}

# An address in a word: up to the closing quote, else to the end of a list item or the next address.
_ADDRESS = re.compile(
    r"""(["'])?\w[\w+.-]*://.*?"""
    r"""(?=(?(1)\1|(?:[\]}]*(?:,\s|$)|[\s,\[\]{}"']+\w[\w+.-]*://))|$)""",
    re.DOTALL,
)


def command(words: Sequence[str]) -> str:
    """A command line for a shell. Addresses, anywhere in a word, are without their secrets."""
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
    """log.jsonl and tensorboard/ in a run's folder, created by the first `write`, on rank 0 alone.

    epoch, step: where the run resumes. Later lines of an earlier process are removed, so that the
    log equals that of a run that was never stopped. Raises UserError where the folder cannot be
    written.
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
        """Whether there is such a line; False on other ranks than 0."""
        return (event, step) in self.written

    def _open(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if self.path.exists():
            write_text("".join(json.dumps(line) + "\n" for line in self.kept), self.path)
        with user_errors(self.path):
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
        with user_errors(self.path):
            text = (json.dumps(line) + "\n").encode()
            if self.file.write(text) < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            for name, value in values.items():
                self.board.add_scalar(f"{event}/{name}", value, step)
        self.written.add((event, step))

    def flush(self) -> None:
        """Write TensorBoard's buffer to its file."""
        if self.file is not None:
            with contextlib.suppress(OSError):  # as in `close`
                self.board.flush()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            with contextlib.suppress(OSError):  # a full disk, for which `write` has raised an error
                self.board.close()


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log.jsonl, if it exists, without a line that a kill cut off."""
    if path.exists():
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                line = json.loads(text)
                if isinstance(line, dict):
                    yield line


def _is_before(line: dict[str, Any], epoch: int, step: int) -> bool:
    return line["step"] <= step if line["event"] == "step" else line["step"] < epoch
