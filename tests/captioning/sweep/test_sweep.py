"""A sweep from the command line to its figure; finished runs are kept."""

import json
import os
from unittest.mock import Mock

import pytest
import torch

from captioning.config import load_config
from captioning.runtime.errors import UserError
from captioning.runtime.jobs import Job
from captioning.sweep import comparison
from captioning.sweep.__main__ import main
from captioning.sweep.runs import RunLogger, job_slots
from tests.programs import one_error_line


@pytest.fixture
def swept(tiny_config, in_process, tmp_path):
    """Return a function that calls the program, with the names of the runs that it began."""
    began, fail = in_process

    def call(*arguments, code=0, **failing):
        began.clear(), fail.clear(), fail.update(failing)
        given = [str(tiny_config), "--output_dir", str(tmp_path / "sweep"), *arguments]
        assert main(given) == code
        return list(began)

    return call


def test_what_the_comparison_lacks_is_found_before_runs_train(swept, tmp_path, capsys):
    assert swept("--collect", str(tmp_path / "nowhere"), code=2) == []
    one_error_line(capsys, "nowhere: no such folder: name the output_dir of a run")
    assert swept("test_file=", code=2) == []
    one_error_line(capsys, "dataset: custom needs test_file")
    assert swept("--output_dir", "/proc/sweep", code=2) == []
    one_error_line(capsys, "/proc/sweep")


def labels(table):
    """Return the first column of a Markdown table, without its heading."""
    return [line.split("|")[1].strip() for line in table.splitlines()[2:]]


def scores_of(row):
    return [cell.strip() for cell in row.split("|")[2:]]


def test_stopped_and_failed_runs_are_continued_and_finished_ones_kept(
    swept, tiny_config, tmp_path, capsys
):
    folder = tmp_path / "sweep"
    pretrain = tmp_path / "pretrain.yaml"
    pretrain.write_text(tiny_config.read_text())
    command = ("--mle", "0,0.5", "--ablation", "first_token_mle", "--pretrain", str(pretrain))
    without = "smile_no_first_token_mle"

    assert swept(*command, code=130, **{"mle0.5": "stop"}) == ["pretrain", "smile"]
    assert "stopped; run the same command again to continue" in capsys.readouterr().err
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
    assert swept("--mle", "0", "max_epoch=2", *command[-2:]) == ["pretrain", "smile"]

    given = [str(folder / name) for name in ("mle0.5", without)]
    assert main(["--collect", *given, "--output_dir", str(tmp_path / "collected")]) == 0
    collected = (tmp_path / "collected" / "table.md").read_text()
    assert labels(collected) == ["Humans", "MLE+SMILE 0.5:0.5", "SMILE"]
    assert scores_of(row) == scores_of(collected.splitlines()[3])


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


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--mle", "2"], "--mle is '2'; give weights from 0 to 1"),
        (["--mle", ""], "--mle is ''; give weights from 0 to 1"),
        (["reward={cider: 1}"], "unset reward, since a sweep compares objectives"),
        (["--ablation", "size"], "--ablation is 'size'; give some of objective, first_token_mle"),
        (["objective=smile"], "objective is set by the sweep"),
        (["--pretrain", "x.yaml", "pretrained=a"], "pretrained is set by the sweep"),
        (["--pretrain", "x.yaml"], "x.yaml: no such file"),
        (["batch=3"], "unknown key 'batch'"),
        (
            ["--ablation", "subset_size", "--subset_sizes", "0"],
            "--subset_sizes is '0'; give whole numbers",
        ),
        (["--jobs", "0"], "--jobs is 0"),
        (["--objectives", "mle,focl"], "--objectives is 'mle,focl'; give some of mle, smile"),
        (
            ["--seeds", "2", "val_file=", "test_file=", "split={val: 0.3, test: 0.3}"],
            "each seed would divide train_file differently: give split a seed",
        ),
        (["--ablation", "first_token_shift", "model=lstm"], "first_token_shift is for model blip"),
    ],
)
def test_what_is_wrong_is_one_line_before_anything_runs(swept, capsys, arguments, line):
    assert swept(*arguments, code=2) == []
    one_error_line(capsys, line)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "name a configuration to train, or finished runs"),
        (["--collect", "no-such-run"], "no-such-run: no such folder"),
        (
            ["--collect", ".", "--mle", "0", "--seeds", "2"],
            "--mle, --seeds: name a configuration to train",
        ),
    ],
)
def test_without_a_configuration_runs_to_collect_are_needed(capsys, arguments, line):
    assert main(arguments) == 2
    one_error_line(capsys, line)


def test_nothing_is_trained_from_a_pretraining_that_failed(swept, tiny_config, capsys):
    arguments = ("--mle", "0,1", "--pretrain", str(tiny_config))
    assert swept(*arguments, code=2, pretrain="out of memory") == ["pretrain"]
    one_error_line(capsys, "error: pretrain failed: out of memory")


def test_ranks_of_torchrun_are_refused(swept, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert swept(code=2) == []
    one_error_line(capsys, "call it without torchrun")


def test_each_run_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    every = [{"CUDA_VISIBLE_DEVICES": number} for number in "012"]
    assert job_slots("auto", None) == job_slots("cuda", 3) == every
    assert job_slots("auto", 2) == every[:2]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-7,6")
    assert job_slots("auto", 2) == [{"CUDA_VISIBLE_DEVICES": name} for name in ("5", "GPU-7")]
    with pytest.raises(UserError, match="there are 3 GPUs"):
        job_slots("auto", 4)
    (slot,) = job_slots("cuda:1", None)
    assert "CUDA_VISIBLE_DEVICES" not in slot
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


def test_each_run_is_announced_and_counted(capsys, monkeypatch, tmp_path):
    clock = iter([0, 10, 130, 300])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    bar = Mock()
    logger = RunLogger(bar)
    logger.on_start(Job("a", None, tmp_path / "a.log", {"CUDA_VISIBLE_DEVICES": "5"}))
    logger.on_start(Job("b", None, tmp_path / "b.log", {"OMP_NUM_THREADS": "1"}))
    logger.on_end("a", None)
    logger.on_end("b", "no such folder")
    assert capsys.readouterr().err.splitlines() == [
        f"a: started on GPU 5, see {tmp_path / 'a.log'}",
        f"b: started, see {tmp_path / 'b.log'}",
        "a: done in 130 s",
        "b: failed: no such folder",
    ]
    assert bar.update.call_count == 2
