"""Tiny runs in processes that can be killed: forked, so that a start takes no import."""

import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Callable, Optional

import torch
from tqdm import tqdm

from captioning import checkpointing, failing, train
from captioning.scenes.make import make_scenes
from tests.tiny_run import TINY_RUN

SOAKED = """
max_length: 10
num_beams: 1
metrics: [length]
log_every: 1
checkpoint_every: 3
rank_timeout: 60
device: cpu
"""


def write_config(folder: Path, train_images: int = 64) -> Path:
    """Draw a data set and write the configuration of a run on it; 24 steps of 8 images."""
    make_scenes(folder / "scenes", splits={"train": train_images, "val": 5, "test": 3})
    path = folder / "tiny.yaml"
    path.write_text(TINY_RUN.format(data=folder / "scenes") + SOAKED)
    return path


class Run:
    """captioning.train in one or more forked processes, each of which is a rank."""

    def __init__(
        self,
        config: Path,
        folder: Path,
        *arguments: str,
        processes: int = 1,
        hook: Optional[Callable[[int], None]] = None,
        output: Optional[Path] = None,
    ):
        """hook: called in each process before training, with its rank; output: what is said."""
        self.folder = folder
        self.output = output or folder.with_name(folder.name + ".output")
        self.output.unlink(missing_ok=True)
        given = ["--config", str(config), "--output_dir", str(folder), *arguments]
        port = _free_port()
        self.ranks: list[int] = []
        self.codes: dict[int, int] = {}  # of those that have ended
        for rank in range(processes):
            child = os.fork()
            if child == 0:
                _be_rank(rank, processes, port, self.output, given, hook)
            self.ranks.append(child)

    def send(self, number: int, ranks: Optional[list[int]] = None) -> None:
        """A signal to those ranks, or all, that have not ended."""
        for rank in range(len(self.ranks)) if ranks is None else ranks:
            if self.ranks[rank] not in self.codes:
                os.kill(self.ranks[rank], number)

    def ended(self) -> bool:
        """Whether all processes have."""
        for child in set(self.ranks) - set(self.codes):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                self.codes[child] = _exit_code(status)
        return len(self.codes) == len(self.ranks)

    def wait(self, seconds: float = 120) -> list[int]:
        """The exit codes, -9 of a killed one. What is left after so long is killed."""
        until = time.monotonic() + seconds
        while not self.ended():
            if time.monotonic() > until:
                self.send(signal.SIGKILL)
            time.sleep(0.005)
        return [self.codes[child] for child in self.ranks]

    def said(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""


def be_quick(rank: int) -> None:
    """A hook: a process that was failed by another waits less for the other to say why."""
    failing.HEAD_START_S = 1


def _be_rank(rank, processes, port, output, arguments, hook):
    code = 70
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        # tqdm's own is shared by forked processes: who is killed with it would stop all others.
        tqdm.set_lock(threading.RLock())
        if processes > 1:
            os.environ.update(
                RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(processes),
                MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
            )  # fmt: skip
        if hook is not None:
            hook(rank)
        code = train.main(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _exit_code(status: int) -> int:
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def log(folder: Path) -> list[dict]:
    """The lines of a run's log; ValueError for one in its midst that is torn."""
    path = folder / "log.jsonl"
    text = path.read_text() if path.exists() else ""
    whole, _, _ = text.rpartition("\n")  # what a kill cut off is mended on resume
    return [json.loads(line) for line in whole.splitlines()]


def last_step(folder: Path) -> int:
    """The last step in a run's log."""
    return max((line["step"] for line in log(folder) if line["event"] == "step"), default=0)


def saved_step(folder: Path, steps: int) -> int:
    """The step of the newest checkpoint that is whole; `steps` make an epoch. Looks, no more."""
    newest = checkpointing.read_newest(folder)
    if newest is None:
        return 0
    content = newest[1]
    done = content["within"]["steps"] if "within" in content else steps
    return content["epoch"] * steps + done


def difference(first: Path, second: Path) -> Optional[str]:
    """What two finished runs differ in: weights, optimiser, log, captions or best; None if nothing.

    To the very bit.
    """
    last = checkpointing.of_epochs(first)[-1].name
    for name in (last, checkpointing.BEST):
        one, two = (torch.load(folder / name, weights_only=True) for folder in (first, second))
        for part in ("model", "optimizer", "scaler", "epoch"):
            if not _same(one[part], two[part]):
                return f"{name}: {part}"
    if log(first) != log(second):
        return "log.jsonl"
    for path in sorted((first / "result").glob("*.json")):
        if path.read_bytes() != (second / "result" / path.name).read_bytes():
            return path.name
    return None


def _same(one, two) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(_same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(_same, one, two))
    return one == two
