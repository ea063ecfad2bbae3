"""A sweep from the command line to its figure; finished runs are kept."""

import json

import pytest

from captioning.config import load_config
from captioning.sweep.__main__ import main


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


def test_what_is_done_is_not_done_again(swept, tiny_config, tmp_path, capsys):
    folder = tmp_path / "sweep"
    pretrain = tmp_path / "pretrain.yaml"
    pretrain.write_text(tiny_config.read_text())
    command = ("--mle", "0,0.5", "--ablation", "first_token_mle", "--pretrain", str(pretrain))
    without = "smile_no_first_token_mle"

    assert swept(*command, code=130, **{"mle0.5": "stop"}) == ["pretrain", "smile"]
    assert "stopped; the same command continues from here" in capsys.readouterr().err
    refused = {"mle0.5": "the loss is not finite"}
    assert swept(*command, code=2, **refused) == ["pretrain", "mle0.5", without]
    told = capsys.readouterr()
    assert "error: mle0.5 failed: the loss is not finite" in told.err
    assert [line.split(" | ")[0] for line in told.out.splitlines()[2:]] == [
        *("| Humans", "| SMILE", "| SMILE, no first-token MLE")  # those that are done
    ]
    assert swept(*command) == ["pretrain", "mle0.5"]
    assert (folder / "frontier.svg").read_text().count("<svg") == 1
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
    row = next(line for line in table.splitlines() if line.startswith("| 0.5 MLE + 0.5 SMILE |"))
    length = scores["cap_len"]
    assert f"| {length['value']:.1f} ({length['low']:.1f}-{length['high']:.1f}) |" in row
    assert swept("--mle", "0", "pretrained=other.pth", code=2) == ["smile"]
    told = capsys.readouterr().err
    assert "had other settings (pretrained was" in told and "smile failed: it said why" in told
    # With more epochs, the requested run has more to do.
    assert swept("--mle", "0", "max_epoch=2", *command[-2:]) == ["pretrain", "smile"]

    given = [str(folder / name) for name in ("mle0.5", without)]
    assert main(["--collect", *given, "--output_dir", str(tmp_path / "collected")]) == 0
    lines = (tmp_path / "collected" / "table.md").read_text().splitlines()
    assert [line.split(" | ")[0] for line in lines[3:]] == ["| MLE+SMILE 0.5:0.5", "| SMILE"]
    assert row.partition(" | ")[2] == lines[3].partition(" | ")[2]


def test_seeds_are_told_as_one_in_table_and_report(swept, tmp_path):
    folder = tmp_path / "sweep"
    assert len(swept("--mle", "0,1", "--seeds", "2")) == 4
    table = (folder / "table.md").read_text()
    assert [line.split(" | ")[0] for line in table.splitlines()[3:]] == ["| SMILE", "| MLE"]
    of_seeds = []
    for seed in (0, 1):
        scores = json.loads((folder / f"smile_seed{seed}/result/test/metrics.json").read_text())
        of_seeds.append(scores["metrics"]["cap_len"]["value"])
    report = (folder / "report.html").read_text()
    assert "Scores are means over up to 2 seeds" in report
    assert f"| {sum(of_seeds) / 2:.1f} (" in table.splitlines()[3]
    assert f"<td>{sum(of_seeds) / 2:.1f} <small>" in report


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--mle", "2"], "'2' are not weights from 0 to 1"),
        (["reward={cider: 1}"], "unset reward, since a sweep compares objectives"),
        (["--ablation", "size"], "'size' is not an ablation; give some of objective"),
        (["objective=smile"], "objective is set by the sweep"),
        (["--pretrain", "x.yaml", "pretrained=a"], "pretrained is set by the sweep"),
        (["--pretrain", "x.yaml"], "x.yaml: no such file"),
        (["batch=3"], "unknown key 'batch'"),
        (["--ablation", "subset_size", "--subset_sizes", "0"], "'0' are not whole numbers"),
        (["--jobs", "0"], "--jobs is 0"),
        (
            ["--seeds", "2", "val_file=", "test_file=", "split={val: 0.3, test: 0.3}"],
            "each seed would divide train_file differently: give split a seed",
        ),
        (["--ablation", "first_token_shift", "model=lstm"], "first_token_shift is for model blip"),
    ],
)
def test_what_is_wrong_is_one_line_before_anything_runs(swept, capsys, arguments, line):
    assert swept(*arguments, code=2) == []
    told = capsys.readouterr().err
    assert line in told and told.startswith("error: ") and told.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "name a configuration to train, or finished runs"),
        (["--collect", "no-such-run"], "no-such-run: no such folder"),
        (
            ["--collect", ".", "--mle", "0"],
            "--mle, --ablation, --objectives and --decodings need a configuration",
        ),
    ],
)
def test_without_a_configuration(capsys, arguments, line):
    assert main(arguments) == 2
    assert line in capsys.readouterr().err


def test_a_pretraining_that_fails_is_all(swept, tiny_config, capsys):
    arguments = ("--mle", "0,1", "--pretrain", str(tiny_config))
    assert swept(*arguments, code=2, pretrain="out of memory") == ["pretrain"]
    assert "error: pretrain failed: out of memory" in capsys.readouterr().err


def test_it_starts_processes_itself(swept, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert swept(code=2) == []
    assert "call it without torchrun" in capsys.readouterr().err
