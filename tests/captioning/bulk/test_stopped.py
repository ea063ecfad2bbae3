"""Runs that are stopped, run out of memory or are abandoned."""

import shutil

import pytest
import torch

from BLIP import BlipCaptioner
from captioning.bulk.model import CheckpointModel
from tests.captioning.bulk.conftest import killed_after
from tests.programs import one_error_line


@pytest.mark.parametrize("workers", [pytest.param("0", marks=pytest.mark.slow), "2"])
def test_a_signal_ends_it_after_the_batch_and_it_continues(run, photos, tmp_path, workers):
    whole, _ = run(photos)
    shutil.rmtree(tmp_path / "out")
    flags = ["--batch_size", "2", "--shard_size", "5", "--num_workers", workers]
    with killed_after(2) as made:
        lines, log = run(photos, *flags)
        assert not lines and "stopped by SIGTERM; run the same command again to continue" in log
        assert len(made) == 4
        lines, log = run(photos, *flags)
    assert "continuing" in log and "4/10" in log
    assert sorted(made) == sorted(line["image"] for line in lines)  # each was captioned once
    assert [line["caption"] for line in lines] == [line["caption"] for line in whole]


def test_out_of_memory_it_goes_on_with_smaller_batches(run, photos, monkeypatch):
    whole, _ = run(photos)
    generate, made, most = BlipCaptioner.generate_details, [], [2]

    def short_of_memory(self, image, settings):
        if len(image) > most[0]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        made.append(len(image))
        return generate(self, image, settings)

    monkeypatch.setattr(BlipCaptioner, "generate_details", short_of_memory)
    lines, log = run(photos, "--existing", "overwrite", "--batch_size", "6")
    assert lines == whole and made == [1] * 10
    notices = [line for line in log.splitlines() if "out of GPU memory" in line]
    assert len(notices) == 2 and notices[0].endswith("6 images at once; from now on 3")
    most[0] = 0
    _, log = run(photos, "--existing", "overwrite", code=2)
    one_error_line(log, "error: out of GPU memory with a single image; lower")


def test_an_unfinished_run_can_be_dropped(run, photos, monkeypatch):
    lines_of = CheckpointModel.lines

    def fail(self, batch, after, job):
        if after > 0:
            raise OSError(28, "No space left on device")
        return lines_of(self, batch, after, job)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointModel, "lines", fail)
        _, log = run(photos, code=2)
    assert log.splitlines()[-1].endswith("captions.jsonl: No space left on device")
    assert "or abandon it with --restart" in run(photos, "--num_beams", "1", code=2)[1]
    lines, _ = run(photos, "--num_beams", "1", "--restart")
    assert len(lines) == 10 and lines[0]["settings"]["num_beams"] == 1
