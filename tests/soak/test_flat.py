"""A short form of the soak: memory and files do not grow; what mutations replace is there."""

import ast
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.runs import write_config
from tests.soak.flat import growth_per_1000_steps, train_and_sample
from tests.soak.mutations import read_mutations

# In so few steps memory still varies, by at most this much per step.
WANDERS = 100 << 10


@pytest.fixture(scope="module")
def fresh():
    """Return a process that no test has left memory to, which it would give back meanwhile."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, fork_again) as executor:
        yield executor


def fork_again():
    """Start processes by the default method again, not as this process was started."""
    multiprocessing.set_start_method(None, force=True)


def growth_of_run(config, folder, epochs, workers):
    """Return the growth per 1000 steps of a run, after two epochs. An epoch has 8 steps."""
    samples = train_and_sample(config, folder, 2, f"max_epoch={epochs}", f"num_workers={workers}")
    assert samples[-1].step == 8 * epochs - 2
    return growth_per_1000_steps([one for one in samples if one.step >= 16])


@pytest.mark.soak
def test_a_run_holds_no_more_and_no_more_files(fresh, tmp_path):
    config = write_config(tmp_path)
    # The first run fills malloc's cache.
    fresh.submit(growth_of_run, config, tmp_path / "before", 4, 1).result()
    found = fresh.submit(growth_of_run, config, tmp_path / "run", 7, 1).result()
    assert found["files"] == found["processes"] == 0
    assert found["memory"] + found["of_workers"] < 1000 * WANDERS


@pytest.mark.parametrize("mutation", read_mutations(), ids=lambda mutation: mutation.title)
def test_its_text_is_in_the_code_once(repository, mutation):
    whole = (repository / mutation.path).read_text()
    assert whole.count(mutation.old) == 1
    ast.parse(whole.replace(mutation.old, mutation.new))
