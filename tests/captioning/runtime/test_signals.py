"""Signals set a flag, which programs check."""

import os
import signal
import time

import pytest
import torch

from captioning.data.loader import Loader
from captioning.runtime import distributed, signals


@pytest.mark.parametrize("number", signals.SIGNALS)
def test_a_signal_sets_the_flag_until_the_outermost_block_ends(number):
    before = signal.getsignal(number)
    with signals.watch():
        with signals.watch():
            os.kill(os.getpid(), number)
        assert signals.stop_requested() == {signal.SIGINT: "Ctrl-C"}.get(number, number.name)
    assert signal.getsignal(number) == before
    with pytest.raises(KeyboardInterrupt), signals.watch():
        assert signals.stop_requested() is None
        for request in (number, signal.SIGINT, signal.SIGINT):  # Ctrl-C twice ends it at once
            os.kill(os.getpid(), request)


@pytest.mark.parametrize(
    ("variable", "asked"),
    [
        ("TORCHELASTIC_RUN_ID", "the launcher's death"),
        (signals.LAUNCHER_VARIABLE, "the launcher's death"),
        ("ANOTHER", None),
    ],
)
def test_the_death_of_a_launcher_is_a_request_and_of_another_parent_is_none(
    monkeypatch, variable, asked
):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv(variable, str(os.getppid()))
    with signals.watch():
        assert signals.stop_requested() is None
        monkeypatch.setattr(os, "getppid", lambda: -1)
        assert signals.stop_requested() == asked


def test_batches_end_at_the_first_check_after_a_request():
    seen = []
    with pytest.raises(signals.Stopped), signals.watch():
        for batch in distributed.until_stop_requested([1, 2, 3, 4], 4):
            seen.append(batch)
            if batch == 2:
                os.kill(os.getpid(), signal.SIGUSR1)
    assert seen == [1, 2]
    with signals.watch():
        assert list(distributed.until_stop_requested([1, 2], 3)) == [1, 2]


class Items(torch.utils.data.Dataset):
    def __getitem__(self, index):
        time.sleep(0.05)
        return {"image": torch.tensor(os.getpid()), "index": index, "unreadable": []}


def test_data_workers_ignore_signals():
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
