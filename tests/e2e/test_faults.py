"""One of two processes dies, hangs, raises an error, has no data or a loss that is not finite."""

import json
import os
import signal
import time

import pytest

from captioning.metrics.diversity import Length
from tests.markers import slow
from tests.processes import Launched
from tests.runs import Run, be_quick, before_steps, difference, last_step, saved_step, write_config

# A step takes a hundredth of this timeout, but the machine may be busy.
TWO = ("batch_size=4", "rank_timeout=6")


def quick(do):
    """A hook: `before_steps`, and wait less for the process that caused an error."""

    def hook(rank):
        be_quick(rank)
        before_steps(do)(rank)

    return hook


def fail():
    raise RuntimeError("a bug in one process")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def hang():
    time.sleep(100)


def wait_for(condition, processes):
    until = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < until and (
            not processes.ended() or processes.wait()[0] in (0, -9)
        )
        time.sleep(0.02)


WAITED = "error: [rank 0] waited in vain for rank 1"


@pytest.mark.parametrize(
    ("do", "code", "line"),
    [(fail, 1, "RuntimeError: a bug in one process"), (die, -9, WAITED), (hang, -9, WAITED)],
)
def test_a_process_that_fails_is_named(config, tmp_path, do, code, line):
    hook = quick(lambda rank, step, _: do() if (rank, step) == (1, 4) else None)
    run = Run(config, tmp_path / "run", *TWO, processes=2, hook=hook)
    if do is hang:
        wait_for(lambda: line in run.said(), run)
        run.send(signal.SIGKILL, [1])  # as the launcher does
    assert run.wait() == [1, code] and line in run.said()
    assert saved_step(tmp_path / "run", 8) == 3


def test_a_loss_of_one_that_is_not_finite_stops_both_with_its_line(run, finished, tmp_path):
    def spoil(rank, step, batches):
        if (rank, step) != (1, 4):
            return None
        batch = next(batches)
        (tmp_path / "images").write_text(json.dumps(batch["image_id"]))
        return iter([{**batch, "image": batch["image"] * float("nan")}])

    said = run(*TWO, "max_epoch=1", code=2, processes=2, hook=quick(spoil))
    images = json.loads((tmp_path / "images").read_text())
    line = f"error: the loss is not finite at step 5 (rank 1 had images {images})"
    assert line in said and "Traceback" not in said
    assert saved_step(tmp_path / "run", 8) == 4
    # Without the fault, the run continues to its usual end.
    run(*TWO, "max_epoch=1", processes=2)
    assert difference(finished("batch_size=4", "max_epoch=1"), tmp_path / "run") is None


@pytest.mark.slow
def test_what_rank_0_does_alone_may_take_longer(run):
    def hook(rank):
        evaluate = Length.evaluate
        Length.evaluate = lambda *given: time.sleep(9) or evaluate(*given)

    run(*TWO, "max_epoch=1", processes=2, hook=hook)


@pytest.mark.slow
def test_ranks_may_have_unequal_or_no_batches_and_caption_as_one_process(tmp_path):
    """A step has 2 x 4 of 23 images. Of 5 images, a rank has two batches; of one image, none."""
    config = write_config(tmp_path, train_images=23)
    samples = json.loads((tmp_path / "scenes" / "scenes_val.json").read_text())
    (tmp_path / "scenes" / "one.json").write_text(json.dumps(samples[:1]))
    for name, *more in (["one", "val_file=one.json"], ["uneven", "eval_batch_size=2"]):
        folder, settings = tmp_path / name, ["batch_size=4", "max_epoch=1", *more]
        run = Run(config, folder, *settings, processes=2)
        assert run.wait() == [0, 0], run.said()
        assert last_step(folder) == 2
    alone = Run(config, folder, *settings, "--evaluate")
    assert alone.wait() == [0], alone.said()
    made, again = (
        json.loads((folder / f"result/{n}.json").read_text()) for n in ("val_epoch00", "val")
    )
    assert made == again and [each["image_id"] for each in made] == [*range(23, 28)]


DIES_ONCE = """
import os, signal, sys
from captioning import train
from tests.runs import before_steps

def die(rank, step, batches):
    if (rank, os.environ["TORCHELASTIC_RESTART_COUNT"], step) == ("1", "0", 4):
        os.kill(os.getpid(), signal.SIGKILL)

before_steps(die)(os.environ["RANK"])
sys.exit(train.main(sys.argv[1:]))
"""


@pytest.fixture
def launch(config, tmp_path):
    """Return a function that starts captioning.launch on two processes of a program."""
    given = ["--config", config, "--output_dir", tmp_path / "run", "batch_size=4"]
    return lambda *program: Launched(2, *program, *given, output=tmp_path / "said")


def test_a_restarted_run_ends_bit_identical(launch, finished, tmp_path):
    (tmp_path / "dies_once.py").write_text(DIES_ONCE)
    launched = launch("--max-restarts", "1", tmp_path / "dies_once.py", "max_epoch=1")
    assert launched.wait() == [0], launched.said()
    assert "resuming from" in launched.said()
    assert difference(finished("batch_size=4", "max_epoch=1"), tmp_path / "run") is None


@pytest.mark.parametrize("number", [signal.SIGTERM, slow(signal.SIGUSR1), signal.SIGKILL])
def test_what_the_launcher_is_sent_saves_and_ends_its_processes(launch, tmp_path, number):
    launched = launch("-m", "captioning.train", "max_epoch=1000")
    wait_for(lambda: last_step(tmp_path / "run") > 3, launched)
    launched.send(number)
    if number == signal.SIGKILL:
        wait_for(lambda: "the launcher's death" in launched.said(), launched)
    else:
        assert launched.wait() == [0], launched.said()
        assert "run the same command again to continue" in launched.said()
    assert last_step(tmp_path / "run") == saved_step(tmp_path / "run", 8)
