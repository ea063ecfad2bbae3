"""The short form of the soak's 2,000 steps: memory and open files stay as they are.

A leak of each kind is put in to see that it would be noticed.
"""

import mmap
import os

import pytest

from captioning.training.fine_tuning import FineTuning
from tests.soak.flat import Sample, growth, problem, slope, watched
from tests.soak.runs import write_config

# In so few steps memory still wanders, by this much each step at the most.
WANDERS = 100 << 10
LEAK = 8 << 20


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Return the configuration of epochs of 8 steps."""
    return write_config(tmp_path_factory.mktemp("flat"))


def grown(config, folder, epochs, workers):
    """What a run of epochs of 8 steps holds more, a thousand steps, but for the first two."""
    samples = watched(config, folder, 2, f"max_epoch={epochs}", f"num_workers={workers}")
    assert samples[-1].step == 8 * epochs - 2
    return growth([one for one in samples if one.step >= 16])


def test_a_run_holds_no_more_and_no_more_files(config, tmp_path):
    grown(config, tmp_path / "before", 4, 1)  # from which malloc keeps what a run needs
    found = grown(config, tmp_path / "run", 7, 1)
    assert found["files"] == found["processes"] == 0
    assert found["memory"] + found["of_workers"] < 1000 * WANDERS


def test_leaks_would_be_noticed(config, tmp_path, monkeypatch):
    kept, rate = [], FineTuning._set_learning_rate

    def leaking(self, epoch, step):
        # Of the system itself: malloc might have as much left over from the tests before.
        memory = mmap.mmap(-1, LEAK)
        memory.write(bytes(LEAK))
        kept.append((os.dup(0), memory))
        return rate(self, epoch, step)

    monkeypatch.setattr(FineTuning, "_set_learning_rate", leaking)
    found = grown(config, tmp_path / "run", 4, 0)
    for descriptor, _ in kept:
        os.close(descriptor)
    assert found["files"] == pytest.approx(1000)
    # What the tests before have left may be given back meanwhile: megabytes each step.
    assert 500 * LEAK < found["memory"] < 1100 * LEAK
    assert "files" in problem(found) and "memory" in problem(found)


def test_a_jump_is_no_growth_and_a_drift_is():
    steps = list(range(0, 2000, 10))
    jump = [5e8 if step < 700 else 6e8 for step in steps]
    assert slope(steps, jump) == 0
    samples = [Sample(step, int(5e8 + 6e3 * step), 0, 30, 2) for step in steps]
    assert growth(samples)["memory"] == pytest.approx(6e6)
    assert problem(growth(samples)) == "memory: 6e+06"
    assert problem(growth([one._replace(memory=1) for one in samples])) == ""
