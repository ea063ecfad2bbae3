"""Two processes give the gradients of one. Errors of one or of all end both."""

import atexit
import os
import shutil
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist

from captioning.config import load_config
from captioning.runtime import distributed, signals
from captioning.runtime.errors import UserError
from captioning.runtime.program import run_program
from captioning.training.fine_tuning import fine_tune
from captioning.training.step import TrainingStep
from tests.processes import Launched, Processes
from tests.programs import raises_line
from tests.runs import be_quick
from tests.tiny import log_of


def _train_an_epoch(arguments):
    """Save the first gradient and the last weights of each rank."""
    path, folder, *overrides = arguments
    config = load_config(path, ["max_epoch=1", *overrides], {"output_dir": str(folder)})
    call, gradient = TrainingStep.__call__, {}

    def watched(step, batches, number):
        named = step.learner.eval().named_parameters()

        def keep(*_, **__):
            if not gradient:
                gradient.update({n: p.grad.clone() for n, p in named if p.grad is not None})

        step.optimizer.register_step_pre_hook(keep)
        result = call(step, batches, number)
        saved = (gradient, step.learner.state_dict())
        torch.save(saved, folder / f"rank{distributed.rank()}.pth")
        return result

    TrainingStep.__call__ = watched
    fine_tune(config, distributed.start("cpu"))
    distributed.stop()


def test_two_processes_train_as_one(scenes_config, tmp_path):
    """Three steps of 8 images: in one process, in two, and in two that accumulate."""
    found = []
    for processes, *overrides in (
        (1, "batch_size=8"),
        (2, "batch_size=4"),
        (2, "batch_size=2", "accumulation_steps=2"),
    ):
        folder = tmp_path / str(len(found))
        given = [scenes_config, folder, "clip_grad_norm=1", "log_every=1", *overrides]
        run = Processes(_train_an_epoch, given, folder.with_suffix(".output"), processes)
        assert run.wait() == [0] * processes, run.said()
        saved = [torch.load(folder / f"rank{rank}.pth") for rank in range(processes)]
        torch.testing.assert_close(saved[-1], saved[0], rtol=0, atol=0)
        names, steps = ("loss", "mle", "smile", "grad_norm"), log_of(folder, "step")
        losses = torch.tensor([[line[part] for part in names] for line in steps])
        assert len(losses) == 3
        gradient, end = saved[0]
        # For tiny gradients, AdamW's direction is rounding noise.
        large = {name: value.abs() > 1e-3 for name, value in (found or saved)[0][0].items()}
        found.append((gradient, losses, {name: end[name][large[name]] for name in large}))
        torch.testing.assert_close(found[-1], found[0], rtol=1e-4, atol=1e-5)


def test_running_statistics_are_those_of_rank_0_and_one_rank_stops_all(tmp_path):
    def collect(folder):
        distributed.start("cpu")
        layer = torch.nn.BatchNorm1d(3)
        layer.running_mean.fill_(5 + distributed.rank())
        distributed.broadcast_buffers(layer)
        (folder / f"{distributed.rank()}").write_text(str(layer.running_mean.tolist()))
        with signals.watch(), pytest.raises(signals.Stopped):
            if distributed.rank() == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            next(distributed.until_stop_requested([1], 1))
        distributed.stop()

    run = Processes(collect, tmp_path, tmp_path / "output", 2)
    assert run.wait() == [0, 0], run.said()
    for rank in "01":
        assert (tmp_path / rank).read_text() == "[5.0, 5.0, 5.0]"


@pytest.mark.parametrize("whose", [pytest.param("one's", marks=pytest.mark.slow), "all's"])
def test_an_error_is_one_line_and_ends_all(scenes, scenes_config, tmp_path, whose):
    """One process reads the damaged image, or all miss the checkpoint."""
    broken = shutil.copytree(scenes, tmp_path / "scenes")
    (broken / "images" / "scene_000007.png").write_bytes(b"")
    setting = f"image_root={broken}" if whose == "one's" else "pretrained=scene_000007.png"
    train = ["-m", "captioning.train", "--config", scenes_config, "--output_dir", tmp_path / "run"]
    launched = Launched(2, *train, setting, "batch_size=4", output=tmp_path / "said")
    assert launched.wait() == [2], launched.said()
    (error,) = [line for line in launched.said().splitlines() if "error" in line.lower()]
    assert "scene_000007.png" in error and "Traceback" not in launched.said()


@pytest.mark.parametrize(("error", "code"), [(UserError("mend it"), 2), (KeyboardInterrupt(), 130)])
def test_a_process_that_fails_alone_does_not_wait_for_the_others(tmp_path, error, code):
    """Rank 1 fails, while rank 0 waits for it. Its worker ends; its atexit functions are called."""

    def never_leave_groups(rank):  # as NCCL, which waits for the processes that do not leave
        be_quick(rank)
        dist.destroy_process_group = lambda: time.sleep(1000)

    def fail_in_a_collective(folder):
        def program():
            distributed.start("cpu")
            if distributed.rank() == 1:
                pool = ProcessPoolExecutor(1, initializer=signals.ignore)
                (folder / "worker").write_text(str(pool.submit(os.getpid).result()))
                atexit.register((folder / "tidied").touch)
                raise error
            distributed.barrier()

        return run_program(program)

    run = Processes(fail_in_a_collective, tmp_path, tmp_path / "said", 2, never_leave_groups)
    assert run.wait() == [1, code], run.said()
    assert run.said().count("[rank 1] error: mend it\n") == (code == 2)
    assert (tmp_path / "tidied").exists()
    assert not Path("/proc", (tmp_path / "worker").read_text()).exists()


def test_each_of_several_processes_has_its_own_gpu(monkeypatch):
    """With four simulated GPUs."""
    used = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    monkeypatch.setattr(distributed, "rendezvous", lambda *_, **__: iter([(Mock(), 3, 4)]))
    monkeypatch.setattr(dist, "PrefixStore", lambda *_: None)
    monkeypatch.setattr(dist, "init_process_group", lambda *given, **named: used.append(named))
    assert distributed.start("cuda:1") == torch.device("cuda", 1) == used.pop()
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "3")
    for name in ("auto", "cuda"):
        device = distributed.start(name)
        assert device == used.pop()["device_id"] == used.pop() == torch.device("cuda", 3)
    for device, line in {
        "cuda:1": "cuda:1 is one GPU for 4 processes; use cuda",
        "gpu": "'gpu' is no device",
    }.items():
        with raises_line(UserError, line):
            distributed.start(device)
    monkeypatch.setenv("LOCAL_RANK", "4")
    with raises_line(UserError, "GPU 4 was requested, but there are 4"):
        distributed.start("cuda")
