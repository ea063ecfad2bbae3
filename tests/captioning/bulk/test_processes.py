"""Processes of torchrun share the units, write the files of one, and stop together."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.captioning.bulk.conftest import read_lines
from tests.processes import Launched

pytestmark = pytest.mark.slow


@pytest.fixture
def launch(given, tmp_path):
    def begin(*flags):
        arguments = ["-m", "captioning.caption", *given("--shard_size", 2, "num_workers=0", *flags)]
        return Launched(2, *arguments, output=tmp_path / "log")

    return begin


def test_a_stop_of_one_stops_all_and_they_write_the_file_of_one(run, launch, photos, tmp_path):
    photo = min(photos.glob("*.png"))
    for number in range(200):
        os.link(photo, photos / f"{number}.png")
    (photos / "bad.png").write_bytes(b"no image")
    whole, _ = run(photos, folder="whole")
    launched = launch("eval_batch_size=1")
    parts = tmp_path / "out" / "captions.jsonl.parts"
    while not list(parts.glob("*/*.last.jsonl")):
        time.sleep(0.05)
    launched.send(signal.SIGTERM)
    assert launched.wait() == [0], launched.said()
    assert "stopped by" in launched.said() and "run the same command again" in launched.said()
    assert not list(parts.glob("*/*.try")) and 0 < len(list(parts.glob("*/*.last.jsonl"))) < 105
    launched = launch("num_beams=1")
    assert launched.wait() == [2], launched.said()
    assert "the unfinished run has" in launched.said()
    launched = launch("eval_batch_size=1")
    assert launched.wait() == [0], launched.said()
    assert "continuing" in launched.said() and "211/211" in launched.said()
    assert read_lines(tmp_path / "out" / "captions.jsonl") == whole


def test_a_process_that_dies_ends_the_others_and_loses_nothing(run, launch, photos, tmp_path):
    launched = launch("eval_batch_size=1")
    parts = tmp_path / "out" / "captions.jsonl.parts"
    while not list(parts.glob("*/*.try")):
        time.sleep(0.02)
    children = Path(f"/proc/{launched.ranks[0].pid}/task").glob("*/children")
    os.kill(int("".join(path.read_text() for path in children).split()[0]), signal.SIGKILL)
    assert launched.wait() != [0], launched.said()
    lines, _ = run(photos, "--shard_size", "2", "eval_batch_size=1", "num_workers=0")
    assert len(lines) == len({line["image"] for line in lines}) == 10
