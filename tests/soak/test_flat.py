"""A short form of the soak's 2,000 steps: memory and open files do not grow; leaks are noticed."""

import mmap
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest

from captioning.training.fine_tuning import FineTuning
from tests.soak.flat import Sample, growth, problem, slope, watched
from tests.soak.runs import write_config

# In so few steps memory still varies, by at most this much per step.
WANDERS = 100 << 10
LEAK = 8 << 20


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Return the configuration of epochs of 8 steps."""
    return write_config(tmp_path_factory.mktemp("flat"))


@pytest.fixture(scope="module")
def fresh():
    """Return a process that no test has left memory to, which it would give back meanwhile."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, fork_again) as executor:
        yield executor


def fork_again():
    """Start processes by the default method again, not as this process was started."""
    multiprocessing.set_start_method(None, force=True)


def grown(config, folder, epochs, workers):
    """What a run of epochs of 8 steps holds more, a thousand steps, but for the first two."""
    samples = watched(config, folder, 2, f"max_epoch={epochs}", f"num_workers={workers}")
    assert samples[-1].step == 8 * epochs - 2
    return growth([one for one in samples if one.step >= 16])


def grown_with_leaks(config, folder):
    """The same of a run that keeps memory, and a file open, at every step."""
    kept, rate = [], FineTuning._set_learning_rate

    def leaking(self, epoch, step):
        memory = mmap.mmap(-1, LEAK)
        memory.write(bytes(LEAK))
        kept.append((os.dup(0), memory))
        return rate(self, epoch, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FineTuning, "_set_learning_rate", leaking)
        found = grown(config, folder, 4, 0)
    for descriptor, _ in kept:
        os.close(descriptor)
    return found


def test_a_run_holds_no_more_and_no_more_files(fresh, config, tmp_path):
    # The first run fills malloc's cache.
    fresh.submit(grown, config, tmp_path / "before", 4, 1).result()
    found = fresh.submit(grown, config, tmp_path / "run", 7, 1).result()
    assert found["files"] == found["processes"] == 0
    assert found["memory"] + found["of_workers"] < 1000 * WANDERS


def test_leaks_would_be_noticed(fresh, config, tmp_path):
    found = fresh.submit(grown_with_leaks, config, tmp_path / "run").result()
    assert found["files"] == pytest.approx(1000)
    assert found["memory"] == pytest.approx(1000 * LEAK, rel=0.1)
    assert "files" in problem(found) and "memory" in problem(found)


def test_a_jump_is_no_growth_and_a_drift_is():
    steps = list(range(0, 2000, 10))
    jump = [5e8 if step < 700 else 6e8 for step in steps]
    assert slope(steps, jump) == 0
    samples = [Sample(step, int(5e8 + 6e3 * step), 0, 30, 2) for step in steps]
    assert growth(samples)["memory"] == pytest.approx(6e6)
    assert problem(growth(samples)) == "memory: 6e+06"
    assert problem(growth([one._replace(memory=1) for one in samples])) == ""
