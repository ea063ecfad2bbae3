"""A sweep from the command line to its figure; finished runs are kept."""

import json
import os
from unittest.mock import Mock

import pytest
import torch

from captioning.config import load_config
from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.sweep import __main__ as program
from captioning.sweep import comparison
from captioning.sweep.runs import job_slots
from tests.programs import one_error_line

# An epoch of a few scenes; more epochs may follow.
QUICK = ("max_epoch=1", "lr_schedule=exponential", "max_length=8", "metrics=[length, facts]")
QUICK += ("facts_file=scenes.json",)


@pytest.fixture
def swept(scenes_config, tmp_path, monkeypatch, no_java, undrawn):
    """Return a function that calls the program, with the names of the runs that it began.

    Jobs run one after the other in this process. One that is a key of `failing` fails with its
    text; "stop" stops the sweep.
    """
    began, failing = [], {}

    def run_jobs(jobs, slots, observer, keep_going=False):
        failures = {}
        for job in jobs:
            if failing.get(job.name) == "stop":
                raise signals.Stopped
            began.append(job.name)
            observer.on_start(job)
            reason = failing.get(job.name) or (job.run() and "it said why")
            observer.on_end(job.name, reason)
            if reason and not keep_going:
                raise UserError(f"{job.name} failed: {reason}")
            if reason:
                failures[job.name] = reason
        return failures

    monkeypatch.setattr(program, "run_jobs", run_jobs)
    monkeypatch.setattr(program, "prepare_jobs", lambda slots: None)

    def call(*arguments, code=0, **reasons):
        began.clear(), failing.clear(), failing.update(reasons)
        given = map(str, (scenes_config, "--output_dir", tmp_path / "sweep", *QUICK))
        assert program.main([*given, *arguments]) == code
        return list(began)

    return call


def labels(table):
    return [line.split("|")[1].strip() for line in table.splitlines()[2:]]


def test_stopped_and_failed_runs_go_on_and_others_stay(swept, scenes_config, tmp_path, capsys):
    folder, pretrain = tmp_path / "sweep", ("--pretrain", str(scenes_config))
    command = ("--mle", "0,0.5", "--ablation", "first_token_mle", *pretrain)
    without = "smile_no_first_token_mle"

    assert swept(*command, code=130, **{"mle0.5": "stop"}) == ["pretrain", "smile"]
    told = capsys.readouterr().err
    assert "stopped; run the same command again to continue" in told
    assert f"smile: started, see {folder / 'smile.log'}" in told and "smile: done" in told
    refused = {"mle0.5": "the loss is not finite"}
    assert swept(*command, code=2, **refused) == ["pretrain", "mle0.5", without]
    told = capsys.readouterr()
    assert "error: mle0.5 failed: the loss is not finite" in told.err
    assert labels(told.out) == ["Humans", "SMILE", "SMILE, no first-token MLE"]  # those done
    assert swept(*command) == ["pretrain", "mle0.5"]
    (folder / "frontier.svg").unlink()
    assert swept(*command) == []
    assert (folder / "frontier.svg").exists()

    # All start from the best checkpoint of what was trained first.
    for name in ("smile", "mle0.5", without):
        config = load_config(folder / name / "config.yaml")
        assert config.pretrained == str(folder / "pretrain" / "checkpoint_best.pth")
        # But they caption with their own checkpoint.
        record = json.loads((folder / name / "result/test/run.json").read_text())
        assert record["checkpoint"] == str(folder / name / "checkpoint_best.pth")
    table = (folder / "table.md").read_text()
    scores = json.loads((folder / "mle0.5/result/test/metrics.json").read_text())["metrics"]
    row = table.splitlines()[labels(table).index("0.5 MLE + 0.5 SMILE") + 2]
    length = scores["cap_len"]
    assert f" {length['value']:.1f} ({length['low']:.1f}-{length['high']:.1f}) |" in row
    assert swept("--mle", "0", "pretrained=other.pth", code=2) == ["smile"]
    told = capsys.readouterr().err
    assert "had other settings (pretrained was" in told and "smile failed: it said why" in told
    # With more epochs, the requested run has more to do.
    assert swept("--mle", "0", "max_epoch=2", *pretrain) == ["pretrain", "smile"]

    given = [str(folder / name) for name in ("mle0.5", without)]
    assert program.main(["--collect", *given, "--output_dir", str(tmp_path / "collected")]) == 0
    collected = (tmp_path / "collected" / "table.md").read_text()
    assert labels(collected) == ["Humans", "MLE+SMILE 0.5:0.5", "SMILE"]
    assert row.split("|")[2:] == collected.splitlines()[3].split("|")[2:]


def test_table_report_and_figure_have_the_means_over_seeds(swept, tmp_path, monkeypatch):
    drawing = Mock(wraps=comparison.draw_plane)
    monkeypatch.setattr(comparison, "draw_plane", drawing)
    folder = tmp_path / "sweep"
    assert len(swept("--mle", "0,1", "--seeds", "2")) == 4
    of_seeds = (3.0, 6.0)
    for seed, value in enumerate(of_seeds):
        path = folder / f"smile_seed{seed}/result/test/metrics.json"
        scores = json.loads(path.read_text())
        scores["metrics"]["cap_len"].update(value=value, low=value - 1, high=value + 1)
        path.write_text(json.dumps(scores))
    assert swept("--mle", "0,1", "--seeds", "2") == []
    table = (folder / "table.md").read_text()
    assert labels(table) == ["Humans", "SMILE", "MLE"] and " 4.5 (" in table.splitlines()[3]
    report = (folder / "report.html").read_text()
    assert "Scores are means over up to 2 seeds" in report and "<td>4.5 <small>" in report
    rows, lines = drawing.call_args.args
    assert rows[1].metrics["cap_len"].value == 4.5
    assert [run.label for run in lines["mixtures"]] == ["SMILE", "MLE"]


DIVIDED = ("val_file=", "test_file=", "split={val: 0.3, test: 0.3}")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--mle", "2"], "--mle is '2'; give weights from 0 to 1"),
        (["--ablation", "size"], "--ablation is 'size'; give some of objective, first_token_mle"),
        (["--ablation", "subset_size", "--subset_sizes", "0"], "--subset_sizes is '0'; give whole"),
        (["--objectives", "mle,focl"], "--objectives is 'mle,focl'; give some of mle, smile"),
        (["--ablation", "first_token_shift", "model=lstm"], "first_token_shift is for model blip"),
        (["reward={cider: 1}"], "unset reward, since a sweep compares objectives"),
        (["objective=smile"], "objective is set by the sweep"),
        (["--pretrain", "x.yaml", "pretrained=a"], "pretrained is set by the sweep"),
        (["--pretrain", "x.yaml"], "x.yaml: no such file"),
        (["--seeds", "2", *DIVIDED], "each seed would divide train_file differently: give split"),
        # What the comparison needs at the end.
        (["--collect", "nowhere"], "nowhere: no such folder: name the output_dir of a run"),
        (["test_file="], "dataset: custom needs test_file"),
        (["--output_dir", "/proc/sweep"], "/proc/sweep"),
    ],
)
def test_what_is_wrong_is_one_line_before_anything_runs(swept, capsys, arguments, line):
    assert swept(*arguments, code=2) == []
    one_error_line(capsys, line)


def test_nothing_is_trained_after_a_failed_pretraining_or_by_torchrun(
    swept, scenes_config, capsys, monkeypatch
):
    arguments = ("--mle", "0,1", "--pretrain", str(scenes_config))
    assert swept(*arguments, code=2, pretrain="out of memory") == ["pretrain"]
    one_error_line(capsys, "error: pretrain failed: out of memory")
    for arguments in ([], ["--collect", ".", "--mle", "0"]):
        assert program.main(arguments) == 2
        one_error_line(capsys, "name a configuration to train")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert swept(code=2) == []
    one_error_line(capsys, "call it without torchrun")


def test_each_run_has_a_gpu_of_its_own_or_a_share_of_the_cores(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    every = [{"CUDA_VISIBLE_DEVICES": number} for number in "012"]
    assert job_slots("auto", None) == job_slots("cuda", 3) == every
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-7,6")
    assert job_slots("auto", 2) == [{"CUDA_VISIBLE_DEVICES": name} for name in ("5", "GPU-7")]
    with pytest.raises(UserError, match="there are 3 GPUs"):
        job_slots("auto", 4)
    with pytest.raises(UserError, match="device is cuda:1, a single GPU"):
        job_slots("cuda:1", 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert job_slots("cpu", None) == job_slots("cuda:1", None) == [{"OMP_NUM_THREADS": "8"}]
    assert job_slots("cpu", 4) == 4 * [{"OMP_NUM_THREADS": "2"}]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert job_slots("cpu", 2) == 2 * [{"OMP_NUM_THREADS": "1"}]
