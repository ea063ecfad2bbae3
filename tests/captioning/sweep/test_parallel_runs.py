"""How many runs go in parallel, on which devices, and what is printed of them."""

import os

import pytest
import torch

from captioning.runtime.errors import UserError
from captioning.runtime.job_runner import Job
from captioning.sweep.parallel_runs import _RunLogger, job_slots


def test_one_run_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    every = [{"CUDA_VISIBLE_DEVICES": number} for number in "012"]
    assert job_slots("auto", None) == job_slots("cuda", 3) == every
    assert job_slots("auto", 2) == every[:2]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-7,6")
    assert job_slots("auto", 2) == [{"CUDA_VISIBLE_DEVICES": name} for name in ("5", "GPU-7")]
    with pytest.raises(UserError, match="there are 3 GPUs"):
        job_slots("auto", 4)
    assert len(job_slots("cuda:1", None)) == 1 and "CUDA_VISIBLE_DEVICES" not in job_slots(
        "cuda:1", None
    )
    with pytest.raises(UserError, match="device is cuda:1, a single GPU"):
        job_slots("cuda:1", 2)


def test_without_a_gpu_runs_share_the_cores(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert job_slots("auto", None) == [{"OMP_NUM_THREADS": "8"}]
    assert job_slots("cpu", 4) == 4 * [{"OMP_NUM_THREADS": "2"}]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert job_slots("cpu", 2) == 2 * [{"OMP_NUM_THREADS": "1"}]


def test_each_run_is_announced_with_the_time_left(capsys, monkeypatch, tmp_path):
    clock = iter([0, 10, 130, 300])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    lines = _RunLogger(3, 2)
    lines.began(Job("a", None, tmp_path / "a.log", {"CUDA_VISIBLE_DEVICES": "5"}))
    lines.began(Job("b", None, tmp_path / "b.log", {"OMP_NUM_THREADS": "1"}))
    lines.ended("a", None)
    lines.ended("b", "no such folder")
    assert capsys.readouterr().err.splitlines() == [
        f"a: started on GPU 5, see {tmp_path / 'a.log'}",
        f"b: started, see {tmp_path / 'b.log'}",
        "[1/3] a: done in 130 s, about 2 min to go",
        "[2/3] b: failed: no such folder, about 2 min to go",
    ]
