"""The log, the recorded command, and lines on the terminal."""

import json
import shlex

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from captioning.config import load_config
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line, progress
from captioning.training.log import RunLog, record_run

WORDS = {  # of a command: what is shown
    "pretrained=https://me:SECRET@host/a.pth?X-Signature=SECRET": "pretrained=https://host/a.pth",
    "f=[https://h/a.tar, https://me:SECRET@h2/b?X=SECRET]": "f=[https://h/a.tar, https://h2/b]",
    "f=[https://h/a?X=SECRET,https://S@h/b#SECRET]": "f=[https://h/a,https://h/b]",
    """x={"a": "https://S@h/a?X=1, SECRET", 'b': 's3://b'}""": """x={"a": "https://h/a", 'b': 's3://b'}""",
    "--url=https://me:SE'CRET@h/a?X='SECRET&u=https://SECRET": "--url=https://h/a",
    "photos/what?#1@home.png": "photos/what?#1@home.png",
}


def test_a_run_records_no_secret_of_an_address(scenes_config, tmp_path, monkeypatch):
    given, *_ = WORDS
    monkeypatch.setattr("sys.argv", ["captioning/train.py", *WORDS])
    config = load_config(scenes_config, [given])
    assert config.pretrained == given.partition("=")[2]
    record_run(config, tmp_path)
    record = json.loads((tmp_path / "run.json").read_text())
    assert shlex.split(record["command"])[2:] == list(WORDS.values())
    assert load_config(tmp_path / "config.yaml").pretrained == "https://host/a.pth"
    assert not [path for path in tmp_path.iterdir() if "SECRET" in path.read_text()]


@pytest.mark.parametrize("rank", [0, 1])
def test_only_rank_0_shows_anything(monkeypatch, capsys, rank):
    monkeypatch.setenv("RANK", str(rank))
    log_line("hello")
    with progress(3, "bar") as bar:
        bar.update(3)
    shown = capsys.readouterr().err
    assert ("hello" in shown and "bar: 100%" in shown) if rank == 0 else shown == ""


def test_a_log_goes_on_where_the_run_does(tmp_path, monkeypatch):
    """Lines of later steps and epochs, and a line that a kill cut off, are removed."""
    # TensorBoard sorts a process's files of one second by name: file 10 before file 9.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    first = [("step", 1), ("step", 2), ("epoch", 0), ("val", 0), ("step", 3), ("step", 4)]
    log = RunLog(tmp_path, 0, 0)
    for event, step in [*first, ("epoch", 1), ("val", 1)]:
        log.write(event, step, {"loss": 1.0, "grad_norm": float("inf")})  # inf is left out
    log.close()
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write('{"event": "step", "st')
    log = RunLog(tmp_path, epoch=1, step=3)
    log.write("step", 4, {"loss": 2.0}, epoch=1)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(line["event"], line["step"]) for line in lines] == first
    assert lines[0].keys() == {"event", "step", "loss"} and lines[-1]["epoch"] == 1
    curves = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [e.value for e in curves.Scalars("step/loss")] == [1, 1, 1, 2]


def test_a_disk_that_takes_no_more_is_one_line(tmp_path):
    log = RunLog(tmp_path, 0, 0)
    log.file.close()
    log.file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    with pytest.raises(UserError, match=r"cannot write .*log.jsonl: No space left on device"):
        log.write("step", 2, {"loss": 1.0})
    log.close()
