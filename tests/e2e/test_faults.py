"""One of two processes dies, hangs, raises or has nothing to do."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from captioning.metrics.diversity import Length
from captioning.training.fine_tuning import FineTuning
from tests.soak.launched import Launched
from tests.soak.runs import Run, be_quick, difference, last_step, saved_step, write_config

pytestmark = pytest.mark.slow

# A step takes a hundredth of that, but the machine may be busy.
TWO = ("batch_size=4", "rank_timeout=6")


def at_step_5(do):
    """A hook: rank 1 does that in its fifth step."""

    def hook(rank):
        be_quick(rank)
        original = FineTuning._optimiser_step

        def faulty(self, batches, step):
            if rank == 1 and step == 4:
                do()
            return original(self, batches, step)

        FineTuning._optimiser_step = faulty

    return hook


def fail():
    raise RuntimeError("a bug in one process")


def test_a_process_that_raises_ends_the_run_with_its_error(config, tmp_path):
    run = Run(config, tmp_path / "run", *TWO, processes=2, hook=at_step_5(fail))
    assert run.wait() == [1, 1]
    assert "RuntimeError: a bug in one process" in run.said()
    assert saved_step(tmp_path / "run", 8) == 3


def test_a_process_that_dies_is_named(config, tmp_path):
    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    run = Run(config, tmp_path / "run", *TWO, processes=2, hook=at_step_5(die))
    assert run.wait() == [1, -9] and saved_step(tmp_path / "run", 8) == 3
    assert "error: [rank 0] waited in vain for rank 1" in run.said()


def freeze():
    os.kill(os.getpid(), signal.SIGSTOP)  # like a process on a lost machine


def hang():
    time.sleep(100)


@pytest.mark.parametrize("fault", [hang, freeze])
def test_a_process_that_hangs_is_named(config, tmp_path, fault):
    run = Run(config, tmp_path / "run", *TWO, processes=2, hook=at_step_5(fault))
    until = time.monotonic() + 60
    while "waited in vain for rank 1" not in run.said() and time.monotonic() < until:
        time.sleep(0.1)
    run.send(signal.SIGKILL, [1])  # as the launcher does
    assert run.wait() == [1, -9]
    assert "error: [rank 0] waited in vain for rank 1" in run.said()


def test_what_rank_0_does_alone_may_take_longer(config, tmp_path):
    def hook(rank):
        def slowly(self, captions):
            time.sleep(9)
            return evaluate(self, captions)

        evaluate, Length.evaluate = Length.evaluate, slowly

    settings = ["batch_size=4", "rank_timeout=6", "max_epoch=1"]
    run = Run(config, tmp_path / "run", *settings, processes=2, hook=hook)
    assert run.wait() == [0, 0], run.said()


def test_a_rank_without_data_uneven_shards_and_a_last_partial_batch(tmp_path):
    """Of 23 images 2 x 4 are a step; of 5 one rank has two batches, of one image one has none."""
    config = write_config(tmp_path, train_images=23)
    samples = json.loads((tmp_path / "scenes" / "scenes_val.json").read_text())
    (tmp_path / "scenes" / "one.json").write_text(json.dumps(samples[:1]))
    for name, *more in (["uneven", "eval_batch_size=2"], ["one", "val_file=one.json"]):
        settings = ["batch_size=4", "max_epoch=1", *more]
        run = Run(config, tmp_path / name, *settings, processes=2)
        assert run.wait() == [0, 0], run.said()
        assert last_step(tmp_path / name) == 2
    captions = json.loads((tmp_path / "uneven" / "result" / "val_epoch00.json").read_text())
    assert len(captions) == 5


DIES_ONCE = """
import os, signal, sys
from captioning import train
from captioning.metrics.diversity import Length
from captioning.training.fine_tuning import FineTuning

original = FineTuning._optimiser_step

def step(self, batches, number):
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        if number == 4:
            os.kill(os.getpid(), signal.SIGKILL)
    return original(self, batches, number)

FineTuning._optimiser_step = step
sys.exit(train.main(sys.argv[1:]))
"""


@pytest.fixture
def launch(config, tmp_path):
    """Return a function that starts captioning.launch on two processes of a program."""
    started = []

    def start(*program, settings=()):
        given = ["--config", config, "--output_dir", tmp_path / "run", "batch_size=4", *settings]
        started.append(Launched(2, *program, *given, output=tmp_path / "said"))
        return started[-1]

    yield start
    for launched in started:
        launched.send(signal.SIGKILL)
        launched.wait()


def test_a_run_is_started_again_from_its_last_checkpoint(launch, finished, tmp_path):
    (tmp_path / "dies_once.py").write_text(DIES_ONCE)
    launched = launch("--max-restarts", "1", tmp_path / "dies_once.py")
    assert launched.wait() == [0], launched.said()
    assert "resuming from" in launched.said()
    assert difference(finished("batch_size=4"), tmp_path / "run") is None


def wait_for(condition, launched):
    until = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < until and (not launched.ended() or launched.wait()[0] in (0, -9))
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_the_launcher_saves_and_ends_in_order(launch, tmp_path, number):
    launched = launch("-m", "captioning.train", settings=["max_epoch=1000"])
    wait_for(lambda: last_step(tmp_path / "run") > 3, launched)
    launched.send(number)
    assert launched.wait() == [0], launched.said()
    assert "the same command continues from here" in launched.said()
    assert last_step(tmp_path / "run") == saved_step(tmp_path / "run", 8)


def test_no_process_outlives_its_launcher(launch, tmp_path):
    launched = launch("-m", "captioning.train", settings=["max_epoch=1000"])
    wait_for(lambda: last_step(tmp_path / "run") > 3, launched)
    launched.send(signal.SIGKILL)
    wait_for(lambda: "the launcher's death" in launched.said(), launched)
    assert last_step(tmp_path / "run") == saved_step(tmp_path / "run", 8)


def is_at_work(process):
    """Whether it has not ended; a zombie has."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_nor_one_that_was_killed_before_the_group_was_there(launch, tmp_path):
    launched = launch("-m", "captioning.train", settings=["max_epoch=1000"])
    wait_for(lambda: len(launched.children()) == 2, launched)
    left = launched.children()
    launched.send(signal.SIGKILL)
    launched.wait()
    until = time.monotonic() + 100
    while any(map(is_at_work, left)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(is_at_work, left))
    assert not (tmp_path / "run" / "log.jsonl").exists()
