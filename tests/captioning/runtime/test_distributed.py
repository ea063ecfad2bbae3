"""Two processes give the gradients and captions of one. Errors of one or of all end both."""

import atexit
import json
import os
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from captioning.config import load_config
from captioning.runtime import distributed, signals
from captioning.runtime.errors import UserError
from captioning.runtime.program import run_program
from captioning.training.fine_tuning import FineTuning
from tests.captioning.training import conftest as training
from tests.processes import Launched, Processes
from tests.programs import raises_line
from tests.runs import Run, be_quick
from tests.tiny import log_of


def _train_an_epoch(arguments):
    """Save the first gradient and the last weights of each rank."""
    path, folder, *overrides = arguments
    config = load_config(path, ["max_epoch=1", *overrides], {"output_dir": str(folder)})
    tuning = training.without_dropout(FineTuning(config, distributed.start("cpu")))
    gradient = training.first_gradient(tuning)
    torch.save((gradient, tuning.captioner.state_dict()), folder / f"rank{distributed.rank()}.pth")
    tuning.close()
    distributed.stop()


def test_two_processes_train_as_one(scenes_config, tmp_path):
    """Three steps of 8 images: in one process, in two, and in two that accumulate."""
    close = {"rtol": 1e-4, "atol": 1e-5}
    first, ends, losses = {}, {}, {}
    for name, processes, *overrides in [
        ("one", 1, "batch_size=8"),
        ("two", 2, "batch_size=4"),
        ("accumulated", 2, "batch_size=2", "accumulation_steps=2"),
    ]:
        folder = tmp_path / name
        given = [scenes_config, folder, "clip_grad_norm=1", "log_every=1", *overrides]
        run = Processes(_train_an_epoch, given, tmp_path / f"{name}.output", processes)
        assert run.wait() == [0] * processes, run.said()
        saved = [torch.load(folder / f"rank{rank}.pth") for rank in range(processes)]
        (first[name], ends[name]), (last_gradient, last_end) = saved[0], saved[-1]
        torch.testing.assert_close(last_gradient, first[name], rtol=0, atol=0)
        torch.testing.assert_close(last_end, ends[name], rtol=0, atol=0)
        names = ("loss", "mle", "smile", "grad_norm")
        steps = log_of(folder, "step")
        losses[name] = torch.tensor([[line[part] for part in names] for line in steps])
    assert len(losses["one"]) == 3
    for name in ("two", "accumulated"):
        torch.testing.assert_close(first[name], first["one"], **close)
        torch.testing.assert_close(losses[name], losses["one"], **close)
        for key, value in first["one"].items():
            # For tiny gradients, AdamW's direction is rounding noise.
            large = value.abs() > 1e-3
            torch.testing.assert_close(ends[name][key][large], ends["one"][key][large], **close)


@pytest.mark.slow
def test_two_processes_caption_and_score_as_one(scenes_config, tmp_path):
    folder = tmp_path / "run"
    run = Run(scenes_config, folder, "max_epoch=1", "batch_size=4", processes=2)
    assert run.wait() == [0, 0], run.said()
    captions, scores = [], []
    for processes in (1, 2):
        evaluate = ["--evaluate", "--eval_split", "test", "batch_size=3"]
        run = Run(scenes_config, folder, *evaluate, processes=processes)
        assert run.wait() == [0] * processes, run.said()
        assert f"loaded {folder / 'checkpoint_best.pth'}: every key matched" in run.said()
        captions.append(json.loads((folder / "result" / "test.json").read_text()))
        content = json.loads((folder / "result" / "test" / "metrics.json").read_text())
        scores.append(content["metrics"])
    assert captions[0] == captions[1] and scores[0] == scores[1] and "cap_len" in scores[0]
    assert [entry["image_id"] for entry in captions[0]] == list(range(29, 36))


def _share_statistics(folder):
    distributed.start("cpu")
    layer = torch.nn.BatchNorm1d(3)
    layer.running_mean.fill_(5 + distributed.rank())
    distributed.broadcast_buffers(layer)
    torch.save(layer.running_mean, f"{folder}/{distributed.rank()}.pth")
    distributed.stop()


def test_running_statistics_are_those_of_rank_0(tmp_path):
    run = Processes(_share_statistics, tmp_path, tmp_path / "output", 2)
    assert run.wait() == [0, 0], run.said()
    assert all(torch.load(tmp_path / f"{rank}.pth").tolist() == [5, 5, 5] for rank in range(2))


@pytest.mark.parametrize(
    "whose", [pytest.param("of one process", marks=pytest.mark.slow), "of all processes"]
)
def test_an_error_is_one_line_and_ends_all(scenes, scenes_config, tmp_path, whose):
    """One process reads the damaged image, or all miss the checkpoint."""
    broken = shutil.copytree(scenes, tmp_path / "scenes")
    (broken / "images" / "scene_000007.png").write_bytes(b"")
    train = ["-m", "captioning.train", "--config", scenes_config, "--output_dir", tmp_path / "run"]
    setting = f"image_root={broken}" if whose == "of one process" else "pretrained=absent.pth"
    launched = Launched(2, *train, setting, "batch_size=4", output=tmp_path / "said")
    assert launched.wait() == [2], launched.said()
    (error,) = [line for line in launched.said().splitlines() if "error" in line.lower()]
    assert ("scene_000007.png" if whose == "of one process" else "absent.pth") in error
    assert "Traceback" not in launched.said()


def _leave_groups_as_nccl(rank):
    """A hook: `destroy_process_group` waits for all processes, as with NCCL."""
    be_quick(rank)
    left = dist.destroy_process_group

    def destroy():
        store = dist.distributed_c10d._get_default_store()
        store.add("leaving", 1)
        while store.add("leaving", 0) < 2:
            time.sleep(0.1)
        left()

    dist.destroy_process_group = destroy


def _fail_in_a_collective(arguments):
    """Rank 1 fails, with an idle worker process, while rank 0 waits for it."""
    folder, error = arguments

    def program():
        distributed.start("cpu")
        if distributed.rank() == 1:
            pool = ProcessPoolExecutor(1, initializer=signals.ignore)
            (folder / "worker").write_text(str(pool.submit(os.getpid).result()))
            atexit.register((folder / "tidied").touch)
            raise error
        distributed.barrier()

    return run_program(program)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("a: mend it"), 2),
        pytest.param(KeyboardInterrupt(), 130, marks=pytest.mark.slow),
    ],
)
def test_a_process_that_fails_alone_does_not_wait_for_the_others(tmp_path, error, code):
    """Its worker is ended, and its atexit functions are called."""
    given = (tmp_path, error)
    run = Processes(_fail_in_a_collective, given, tmp_path / "said", 2, _leave_groups_as_nccl)
    assert run.wait() == [1, code], run.said()
    assert run.said().count("[rank 1] error: a: mend it\n") == (code == 2)
    assert (tmp_path / "tidied").exists()
    assert not Path("/proc", (tmp_path / "worker").read_text()).exists()


def test_each_of_several_processes_has_its_own_gpu(monkeypatch):
    """With four simulated GPUs."""
    used = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: used.update(set=device))
    monkeypatch.setattr(distributed, "rendezvous", lambda *_, **__: iter([(None, 3, 4)]))
    monkeypatch.setattr(dist, "PrefixStore", lambda *_: None)
    initialised = lambda backend, **settings: used.update(backend=backend, **settings)  # noqa: E731
    monkeypatch.setattr(dist, "init_process_group", initialised)
    assert distributed.start("cuda:1") == torch.device("cuda", 1)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "3")
    for name in ("auto", "cuda"):
        device = distributed.start(name)
        assert device == used.pop("device_id") == used["set"] == torch.device("cuda", 3)
        assert (used["backend"], used["rank"], used["world_size"]) == ("nccl", 3, 4)
    with pytest.raises(UserError, match="cuda:1 is one GPU for 4 processes; use cuda"):
        distributed.start("cuda:1")


@pytest.mark.parametrize(
    ("device", "message"),
    [("gpu", "device: 'gpu' is no device"), ("cuda:99", "was requested, but there")],
)
def test_a_device_that_is_not_there_is_one_line(device, message):
    with raises_line(UserError, message):
        distributed.start(device)
