"""What a run leaves to read, and what it shows."""

import json

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from captioning.config import load_config
from captioning.errors import UserError
from captioning.run_log import RunLog, part_of, progress, record_run, say


def test_values_become_lines_and_curves(tmp_path):
    for step in (1, 2):  # as after a resume: the second log goes on with the first
        log = RunLog(tmp_path)
        log.write("step", step, {"loss": 1 / step}, epoch=0)
        log.close()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines == [
        {"event": "step", "step": 1, "epoch": 0, "loss": 1.0},
        {"event": "step", "step": 2, "epoch": 0, "loss": 0.5},
    ]
    log = RunLog(tmp_path)
    log.write("step", 3, {"grad_norm": float("inf")})
    log.close()
    assert (tmp_path / "log.jsonl").read_text().endswith('{"event": "step", "step": 3}\n')
    curves = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in curves.Scalars("step/loss")] == [(1, 1.0), (2, 0.5)]


def test_a_run_records_configuration_command_and_versions(scenes_config, tmp_path):
    config, folder = load_config(scenes_config, ["seed=5"]), tmp_path / "a" / "run"
    record_run(config, folder)
    assert load_config(folder / "config.yaml") == config
    record = json.loads((folder / "run.json").read_text())
    assert "pytest" in record["command"]
    assert {"torch", "transformers", "timm"} <= record["versions"].keys()


def test_a_folder_that_cannot_be_written_is_one_line(scenes_config, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*file/run.json: "):
        record_run(load_config(scenes_config), tmp_path / "file")


def test_only_rank_0_shows_anything(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    say("hello")
    with progress(3, "bar") as bar:
        bar.update(3)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("RANK", "0")
    say("hello")
    with progress(3, "bar") as bar:
        bar.update(3)
    shown = capsys.readouterr().err
    assert "hello" in shown and "bar: 100%" in shown


def test_a_line_that_was_cut_off_swallows_no_other(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"event": "step", "st')
    log = RunLog(tmp_path)
    log.write("step", 3, {"loss": 1.0})
    log.close()
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[1])["step"] == 3


def test_bars_say_what_they_are_part_of(capsys):
    with part_of("[2/9]"), progress(10, "epoch 1/3") as bar:
        assert bar.desc.startswith("[2/9] epoch 1/3")
    with progress(10, "epoch 1/3") as bar:
        assert bar.desc.startswith("epoch 1/3")
