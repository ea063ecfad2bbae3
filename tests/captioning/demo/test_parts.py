"""The demo with a few scenes and steps, in this process: scenes, runs, scores and the report.

tests/e2e/test_demo.py runs it in processes, as a user does.
"""

import json
import re
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest

from captioning.config import load_config
from captioning.demo import __main__ as program
from captioning.demo.clock import PACE, PRIOR_S, SCORING_S, Clock
from captioning.demo.runs import plan_demo, train_first
from captioning.scenes.make import image_name
from captioning.sweep.runs import SweepRun
from tests.programs import refused, run_program

# batch_size: one that is odd is trained by one process.
FLAGS = ("--device", "cpu", "batch_size=9", "num_beams=1")
OBJECTIVES = {"mle": "mle", "smile": "smile", "mle_smile": {"mle": 0.5, "smile": 0.5}}


@pytest.fixture(autouse=True)
def in_process(tmp_path, monkeypatch):
    """Run jobs in this process, one after the other, on a few scenes, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))  # no Java
    splits = {"train": 18, "val": 4, "test": 6}
    monkeypatch.setattr(program, "QUICK_SPLITS", splits)
    monkeypatch.setattr(program, "SPLITS", splits)
    monkeypatch.setattr(program, "prepare_jobs", lambda slots: None)
    monkeypatch.setattr("captioning.demo.clock.POLL_S", 0)

    def run_jobs(jobs, slots, clock):
        for job in jobs:
            assert not job.run(), job.name
            clock.poll()

    monkeypatch.setattr(program, "run_jobs", run_jobs)


def test_scores_captions_and_report_of_the_demo_are_those_of_its_runs(tmp_path):
    refused("captioning.demo", *FLAGS, "max_epoch=1", part="max_epoch is set by the demo: leave it")
    assert not any(tmp_path.iterdir())
    demo = run_program("captioning.demo", "--quick", *FLAGS)
    assert demo.code == 0, demo.err
    for step in ("pre-training", "fine-tuning, captioning and scoring"):
        assert re.search(rf"{step}: \d+%, about \d\d:\d\d to go in all", demo.err)
    first = demo.err.partition("the first captions of the captioners")[2]
    assert re.search(r"\.png\n  MLE .*\n  SMILE .*\n", first)
    folder = tmp_path / "output/demo-quick"
    lines = [line for line in demo.out.splitlines() if line.strip()]
    assert lines[0].split() == ["Humans", "MLE", "SMILE", "MLE+SMILE", "0.5:0.5"]
    (lengths,) = (line for line in lines if line.startswith("Length"))
    image = next(i for i, line in enumerate(lines) if line.startswith("data/scenes-quick/images/"))
    for number, run in enumerate(OBJECTIVES):
        split = folder / run / "result/test"
        length = json.loads((split / "metrics.json").read_text())["metrics"]["cap_len"]["value"]
        assert re.findall(r"(\d+\.\d+) \(", lengths)[number + 1] == f"{length:.1f}"
        results = json.loads(split.with_suffix(".json").read_text())
        captions = {image_name(result["image_id"]): result["caption"] for result in results}
        caption = captions[lines[image].removeprefix("data/scenes-quick/")]
        assert len(captions) == 6 and lines[image + 2 + number].endswith(caption)
        config = load_config(folder / run / "config.yaml")
        assert config.objective == OBJECTIVES[run] and Path(config.tokenizer).is_absolute()
        assert config.pretrained == "output/demo-quick/pretrain/checkpoint_best.pth"
    report = (folder / "report.html").read_text()
    assert "numbers are weaker" in report and report.count("<svg role") >= 2
    kept = {path: path.stat().st_mtime_ns for path in folder.rglob("*.pth")}
    again = run_program("captioning.demo", "--quick", *FLAGS)
    assert again.out == demo.out and "the first captions" not in again.err
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.pth")} == kept


def test_first_captions_of_the_full_demo_come_from_copies_in_pre_training(tmp_path):
    demo = run_program("captioning.demo", *FLAGS)
    assert demo.code == 0 and demo.err.count("the first captions") == 1
    config = load_config(tmp_path / "output/demo/first/smile/config.yaml")
    assert config.pretrained == "output/demo/pretrain/weights_02.pth"
    assert config.objective == "smile"


def test_first_captions_wait_for_the_weights_of_their_epoch(tmp_path, monkeypatch):
    """The best checkpoint, and those of earlier epochs, do not end the wait."""
    data, folder = tmp_path / "data", tmp_path / "output"
    pretraining, _, first = plan_demo(False, data, folder, [])
    trained = []
    monkeypatch.setattr(SweepRun, "train", lambda run: trained.append(run.folder.name))
    data.mkdir(), pretraining.folder.mkdir(parents=True)
    (data / "scenes_train.json").write_text("[]")
    for name in ("checkpoint_01", "checkpoint_best"):
        (pretraining.folder / f"{name}.pth").touch()
    waiting = Thread(target=train_first, args=(first, data))
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive()
    for name in ("weights_02", "checkpoint_02"):
        (pretraining.folder / f"{name}.pth").touch()
    waiting.join(10)
    assert trained == ["mle", "smile"]


def test_the_time_left_follows_the_pace_of_this_call(tmp_path, monkeypatch):
    """Two runs train on 10 * PACE images each, in batches of PACE."""
    now = [100.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    config = SimpleNamespace(batch_size=PACE, max_epoch=1)
    monkeypatch.setattr(SweepRun, "config", lambda run: config)
    runs = [SweepRun(tmp_path / name, [], []) for name in ("mle", "smile")]
    runs[0].folder.mkdir()

    def seconds_left(clock, passed, steps):
        now[0] = 100.0 + passed
        (runs[0].folder / "log.jsonl").write_text(f'{{"event": "step", "step": {steps}}}\n')
        clock.poll()
        minutes, seconds = re.search(r"about (\d+):(\d+)", str(clock.bar)).groups()
        return 60 * int(minutes) + int(seconds)

    clock = Clock(runs, 10 * PACE, runs, tmp_path)
    assert seconds_left(clock, 0, 0) == 20 + SCORING_S
    left = seconds_left(clock, 2 * PRIOR_S, 5)  # 5 batches in twice PRIOR_S
    pace = (PRIOR_S + 5) / (3 * PRIOR_S)
    assert left == pytest.approx((20 + SCORING_S - 5) / pace, abs=1)
    # What an earlier call trained tells nothing of the pace.
    now[0] = 100.0
    assert seconds_left(Clock(runs, 10 * PACE, runs, tmp_path), 0, 5) == 15 + SCORING_S
