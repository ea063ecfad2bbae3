"""Logs a run: its configuration and command, and values as JSON lines and TensorBoard curves.

Another value of a training step is logged if it is added to the parts of the loss, which are
averaged over the tokens of all processes and accumulated batches, or to `StepResult.values`, which
are logged unchanged; a count is summed with `step.COUNTS`. TensorBoard then has a curve of it. The
report draws only CURVES.
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
from captioning.files.reading import read_lines
from captioning.files.stores import without_secrets
from captioning.files.writing import user_errors, write_json, write_text
from captioning.metrics.scoring import library_versions
from captioning.runtime.distributed import is_main, world_size

LOG = "log.jsonl"

# {value of steps that the report draws besides the objectives: (title, axis label)}
CURVES = {
    "reward": ("Reward in training", "reward per caption"),
    "length": ("Length in training", "words per sampled caption"),
}

# An address within an argument. An address in quotes ends at the closing quote. Any other address
# ends at the end of a list item or where the next address begins.
_ADDRESS = re.compile(
    r"""(["'])?\w[\w+.-]*://.*?"""
    r"""(?=(?(1)\1|(?:[\]}]*(?:,\s|$)|[\s,\[\]{}"']+\w[\w+.-]*://))|$)""",
    re.DOTALL,
)


def shell_command(arguments: Sequence[str]) -> str:
    """Return the arguments as a shell command, with secrets removed from addresses."""
    return shlex.join(
        _ADDRESS.sub(lambda match: without_secrets(match[0]), argument) for argument in arguments
    )


def record_run(config: Config, folder: Path, **more: Any) -> None:
    """Write config.yaml and run.json to the folder, on rank 0. Raises UserError.

    run.json has the command, the versions of libraries, and the entries `more`.
    """
    if is_main():
        record = {
            "command": shell_command([sys.executable, *sys.argv]),
            "python": platform.python_version(),
            "processes": world_size(),
            "versions": library_versions(
                "torch", "torchvision", "transformers", "timm", "pycocoevalcap"
            ),
            **more,
        }
        write_json(record, folder / "run.json")
        write_config(config, folder / "config.yaml")


class RunLog:
    """Appends to log.jsonl and tensorboard/ in a run's folder, on rank 0.

    - epoch, step: where the run resumes, from 0. The lines after this point, which an interrupted
      process has written, are removed. Raises UserError if it cannot write
    """

    def __init__(self, folder: Path, epoch: int, step: int):
        self.path = folder / LOG
        if not is_main():
            return
        from torch.utils.tensorboard import SummaryWriter

        kept = (line for line in read_log(self.path) if _is_before(line, epoch, step))
        write_text("".join(json.dumps(line) + "\n" for line in kept), self.path)
        with user_errors(self.path):
            # Unbuffered, so that each line is one system call, which a kill does not interrupt.
            self.file = open(self.path, "ab", buffering=0)  # noqa: SIM115
            self.tensorboard = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, event: str, step: int, values: dict[str, float], **more: Any) -> None:
        """Write a line {"event", "step", entries of `more` and `values`}, and TensorBoard points.

        Values that are not finite are left out, such as the norm of a gradient that overflowed.
        Raises UserError if the disk is full.

        - event: "step", "epoch" or "val"
        - step: the number of finished steps of the run for "step", else the epoch, from 0
        - values: get a curve each
        """
        if not is_main():
            return
        values = {name: value for name, value in values.items() if math.isfinite(value)}
        text = (json.dumps({"event": event, "step": step, **more, **values}) + "\n").encode()
        with user_errors(self.path):
            if self.file.write(text) < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            for name, value in values.items():
                self.tensorboard.add_scalar(f"{event}/{name}", value, step)
            self.tensorboard.flush()

    def close(self) -> None:
        if is_main():
            self.file.close()
            with contextlib.suppress(OSError):  # of a full disk, as `write` has said already
                self.tensorboard.close()


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a log.jsonl as dicts; nothing without the file. Skips broken lines."""
    return (line for line in read_lines(path) if line and {"event", "step"} <= line.keys())


def _is_before(line: dict[str, Any], epoch: int, step: int) -> bool:
    return line["step"] <= step if line["event"] == "step" else line["step"] < epoch
