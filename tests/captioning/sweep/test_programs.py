"""Programs side by side: so many at once, failing apart, stopped together."""

import os
import signal
import threading
import time

import pytest
import torch

from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.sweep.programs import Program, run_programs, slots


@pytest.fixture
def shell(tmp_path):
    """Return a function that makes a program of a line of shell."""

    def program(name, line):
        return Program(name, ["bash", "-c", line], tmp_path / f"{name}.log")

    return program


def test_one_that_fails_is_named_and_ends_no_other(shell, tmp_path):
    (tmp_path / "said.log").write_text("error: of an earlier time\n")
    programs = [
        shell("said", "echo 'error: no such folder' >&2; exit 2"),
        shell("silent", "exit 7"),
        shell("killed", "kill -9 $$"),
        shell("good", f"touch {tmp_path}/made"),
    ]
    failures = run_programs(programs, [{}])
    log = tmp_path / "silent.log"
    assert failures == {
        "said": "no such folder",
        "silent": f"it ended with exit code 7; its last lines are in {log}",
        "killed": f"it ended with signal 9; its last lines are in {tmp_path / 'killed.log'}",
    }
    assert (tmp_path / "made").exists()
    again = run_programs([shell("said", "exit 4")], [{}])  # its log still has the line above
    assert again["said"].startswith("it ended with exit code 4")


def test_as_many_at_once_as_there_are_slots_each_with_its_own(shell, tmp_path):
    # Each waits for a partner: alone, none would end.
    line = f"""touch {tmp_path}/$GPU.$NAME
    for i in $(seq 200); do
        test $(ls {tmp_path} | grep -c '^[01]\\.') -ge $LEAST && exit 0; sleep 0.02
    done; exit 1"""
    programs = [
        shell(str(n), f"NAME={n}; LEAST={min(2 * (n // 2) + 2, 4)}; {line}") for n in range(4)
    ]
    assert run_programs(programs, [{"GPU": "0"}, {"GPU": "1"}]) == {}
    assert {path.name[0] for path in tmp_path.glob("[01].?")} == {"0", "1"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_stop_is_passed_on_and_begins_no_other(shell, tmp_path, number):
    ends = f"trap 'touch {tmp_path}/asked.$NAME; exit 3' TERM; touch {tmp_path}/up.$NAME"
    line = f"{ends}; while :; do sleep 0.02; done"
    programs = [shell(name, f"NAME={name}; {line}") for name in "abc"]

    def ask():
        while len(list(tmp_path.glob("up.*"))) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    asking = threading.Thread(target=ask)
    asking.start()
    with pytest.raises(signals.Stopped):
        run_programs(programs, [{}, {}])
    asking.join()
    assert sorted(path.name for path in tmp_path.glob("asked.*")) == ["asked.a", "asked.b"]
    assert not (tmp_path / "up.c").exists()


def test_ctrl_c_twice_ends_those_that_do_not_listen(shell, tmp_path):
    line = f"trap '' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 0.02; done"

    def ask():
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    asking = threading.Thread(target=ask)
    asking.start()
    with pytest.raises(KeyboardInterrupt):
        run_programs([shell("deaf", line)], [{}])
    asking.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_run_knows_whose_death_is_a_request(shell, tmp_path):
    assert run_programs([shell("a", f"echo ${signals.PARENT} $PPID > {tmp_path}/told")], [{}]) == {}
    told, parent = (tmp_path / "told").read_text().split()
    assert told == parent == str(os.getpid())


def test_one_run_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    every = [{"CUDA_VISIBLE_DEVICES": number} for number in "012"]
    assert slots("auto", None) == slots("cuda", 3) == every
    assert slots("auto", 2) == every[:2]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-7,6")
    assert slots("auto", 2) == [{"CUDA_VISIBLE_DEVICES": name} for name in ("5", "GPU-7")]
    with pytest.raises(UserError, match="there are 3 GPUs"):
        slots("auto", 4)
    assert len(slots("cuda:1", None)) == 1 and "CUDA_VISIBLE_DEVICES" not in slots("cuda:1", None)
    with pytest.raises(UserError, match="device is cuda:1, one GPU"):
        slots("cuda:1", 2)


def test_without_a_gpu_runs_share_the_cores(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert slots("auto", None) == [{"OMP_NUM_THREADS": "8"}]
    assert slots("cpu", 4) == 4 * [{"OMP_NUM_THREADS": "2"}]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert slots("cpu", 2) == 2 * [{"OMP_NUM_THREADS": "1"}]
