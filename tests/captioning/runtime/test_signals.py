"""Signals set a flag, and nothing else; those who work look at it."""

import ctypes
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from captioning.data.loader import Loader
from captioning.runtime import distributed, signals


@pytest.mark.parametrize("number", signals.SIGNALS)
def test_a_signal_sets_the_flag_within_the_block(number):
    before = signal.getsignal(number)
    with signals.watch():
        assert signals.stop_requested() is None
        os.kill(os.getpid(), number)
        assert signals.stop_requested() == {signal.SIGINT: "Ctrl-C"}.get(number, number.name)
    assert signal.getsignal(number) == before
    with signals.watch():
        assert signals.stop_requested() is None


def test_a_request_counts_for_all_that_is_done_within_the_outermost_block():
    with signals.watch():
        with signals.watch():
            os.kill(os.getpid(), signal.SIGTERM)
        with signals.watch():
            assert signals.stop_requested() == "SIGTERM"
    with signals.watch():
        assert signals.stop_requested() is None


def test_ctrl_c_twice_ends_at_once():
    with pytest.raises(KeyboardInterrupt), signals.watch():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


def test_the_death_of_torchrun_is_a_request(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    with signals.watch():
        assert signals.stop_requested() is None
        monkeypatch.setattr(os, "getppid", lambda: 1)
        assert signals.stop_requested() == "the launcher's death"


def test_the_death_of_a_sweep_is_a_request_even_before_it_is_looked_for(monkeypatch):
    monkeypatch.setenv(signals.PARENT, str(os.getppid()))
    with signals.watch():
        assert signals.stop_requested() is None
        monkeypatch.setattr(os, "getppid", lambda: 1)
        assert signals.stop_requested() == "the launcher's death"
    with signals.watch():
        assert signals.stop_requested() == "the launcher's death"


def test_without_torchrun_the_death_of_a_parent_is_none(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with signals.watch():
        monkeypatch.setattr(os, "getppid", lambda: 1)
        assert signals.stop_requested() is None


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel is asked by Linux's prctl")
def test_a_program_that_takes_no_signals_ends_with_its_launcher_too(monkeypatch):
    monkeypatch.setenv(signals.PARENT, str(os.getppid()))
    with signals.ended_with_launcher():
        assert death_signal() == signal.SIGKILL
    assert death_signal() == 0
    monkeypatch.setenv(signals.PARENT, str(os.getpid()))  # is not its parent, as if that were dead
    with pytest.raises(signals.Stopped), signals.ended_with_launcher():
        raise AssertionError("the block was entered")
    assert death_signal() == 0


def death_signal():
    """What this process gets when its parent dies."""
    PR_GET_PDEATHSIG = 2
    number = ctypes.c_int()
    ctypes.CDLL(None).prctl(PR_GET_PDEATHSIG, ctypes.byref(number))
    return number.value


def test_batches_end_at_the_first_look_after_a_request():
    seen = []
    with pytest.raises(signals.Stopped), signals.watch():
        for batch in distributed.until_asked([1, 2, 3, 4], 4):
            seen.append(batch)
            if batch == 2:
                os.kill(os.getpid(), signal.SIGUSR1)
    assert seen == [1, 2]
    with signals.watch():
        assert list(distributed.until_asked([1, 2], 3)) == [1, 2]


class Items(torch.utils.data.Dataset):
    """Each says which process made it, after a while."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        time.sleep(0.05)
        return {"image": torch.tensor(os.getpid()), "index": index, "unreadable": []}


def test_processes_that_load_data_leave_signals_alone():
    loader = Loader(Items(), [[index] for index in range(12)], num_workers=2)
    found, workers = [], set()
    for batch in loader:
        found += batch["index"]
        workers.add(int(batch["image"]))
        if len(found) == 3:
            for worker in workers:
                for number in signals.SIGNALS:
                    os.kill(worker, number)
    assert found == list(range(12)) and len(workers) == 2 and os.getpid() not in workers


LEFT = """
from torch.utils.data import DataLoader
from captioning.runtime import signals
if __name__ == "__main__":
    left = iter(DataLoader(range(100), num_workers=1, worker_init_fn=signals.ignore))
    next(left)
    raise RuntimeError("a bug")
"""


def test_a_program_with_a_bug_ends_though_its_workers_ignore_signals(repository, tmp_path):
    (tmp_path / "left.py").write_text(LEFT)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "left.py")],
        env={**os.environ, "PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 1 and "RuntimeError: a bug" in done.stderr
