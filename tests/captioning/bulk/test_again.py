"""A second call: after a stop, with other settings, with more images, or after damage."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from BLIP import BlipCaptioner
from captioning.bulk.model import CheckpointModel
from tests.captioning.bulk.conftest import read_lines, stopped_after
from tests.programs import one_error_line


@pytest.mark.parametrize("workers", [pytest.param("0", marks=pytest.mark.slow), "2"])
def test_a_signal_ends_it_after_the_batch_and_it_continues(run, photos, tmp_path, workers):
    whole, _ = run(photos, folder="whole")
    flags = ["eval_batch_size=2", "--shard_size", "5", f"num_workers={workers}"]
    flags += ["--existing", "overwrite"]  # also then each is captioned once
    with stopped_after(2) as made:
        lines, log = run(photos, *flags)
        assert not lines and "stopped by SIGTERM; run the same command again to continue" in log
        assert len(made) == 4
        (tmp_path / "out" / ".captions.jsonl.7.ab.staged").touch()  # of a killed program
        lines, log = run(photos, *flags)
    assert "continuing" in log and "4/10" in log and "done 10, skipped 0" in log
    assert made == [line["image"] for line in lines]  # each was captioned once
    assert lines == whole
    assert sorted(os.listdir(tmp_path / "out")) == ["captions.jsonl", "captions.jsonl.done"]


def test_an_error_keeps_the_captions_so_far(run, photos, monkeypatch):
    generate, made = BlipCaptioner.generate_details, []

    def short_of_memory(self, image, settings):
        if len(made) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        made.append(len(image))
        return generate(self, image, settings)

    with monkeypatch.context() as patch:
        patch.setattr(BlipCaptioner, "generate_details", short_of_memory)
        one_error_line(run(photos, code=2)[1], "out of GPU memory with 2 images at once: lower ev")
    assert "8/10" in run(photos)[1]


def test_an_unfinished_run_can_be_dropped(run, photos, tmp_path):
    tars = tmp_path / "tars"
    flags = ["--shard_size", "4", "--write-shards", str(tars), "num_workers=0"]
    with stopped_after(2):
        run(photos, *flags, "eval_batch_size=4")
    assert os.listdir(tars) == ["00000.tar"]
    assert "or abandon it with --restart" in run(photos, *flags, "num_beams=1", code=2)[1]
    lines, _ = run(photos, "num_beams=1", "--restart")
    assert len(lines) == 10 and lines[0]["settings"]["num_beams"] == 1
    assert os.listdir(tars) == []  # the tars of the dropped run
    plan = tmp_path / "out" / "captions.jsonl.parts" / "plan.json"
    plan.parent.mkdir()
    plan.write_text('{"settings": {}, "shard_size": 32}')
    one_error_line(run(photos, code=2)[1], "plan.json is of another version of this program")
    assert run(photos, "--restart")[0] == lines and not plan.parent.exists()


def test_an_unfinished_run_refuses_another_input_and_other_settings(run, photos, tmp_path):
    other = shutil.copytree(photos, tmp_path / "other")
    with stopped_after(1):
        run(photos, "num_workers=0")
    for given, line in (
        ([other], f"input ['{photos}'] instead of ['{other}']: finish"),
        ([photos, "--glob", "*1.png"], "glob None instead of '*1.png'"),
        ([photos, "num_beams=1"], "num_beams None instead of 1"),
    ):
        assert f"the unfinished run has {line}" in run(*given, code=2)[1]
    images = sorted(map(str, photos.rglob("*.png")))
    lines, _ = run(f"{photos.parent}/./photos/")  # the same folder
    assert [line["image"] for line in lines] == images
    lines, _ = run(other)
    assert [line["image"] for line in lines[10:]] == sorted(map(str, other.rglob("*.png")))


def test_captions_made_with_other_settings_weights_or_prompts_are_reported(
    run, photos, tmp_path, checkpoint
):
    def reported(*flags, prompts=("the", "a", "")):
        names = (path.name for path in sorted(photos.glob("*.png")))
        rows = [f"{name},{prompt}" for name, prompt in zip(names, prompts)]
        (photos / "list.csv").write_text("\n".join(["image,prompt", *rows]))
        log = run(photos / "list.csv", *flags)[1]
        return [line for line in log.splitlines() if "which stay; --existing overwrite" in line]

    usual = ["max_length=8", "--prefix", "a "]
    assert reported(*usual) == []
    lines = read_lines(tmp_path / "out/captions.jsonl")
    [line] = reported("num_beams=1", "max_length=9", "--prefix", "b ")
    changes = "max_length 8 instead of 9, num_beams None instead of 1, prefix 'a ' instead of 'b '"
    assert f"has captions made with {changes}, which stay" in line
    assert read_lines(tmp_path / "out/captions.jsonl") == lines
    [line] = reported(*usual, prompts=("the", "the", "a"))
    assert line.startswith("2 images have captions made with another prompt, which stay")
    old = checkpoint.stat()
    os.utime(checkpoint, (0, 1))
    [line] = reported(*usual)
    assert "made with checkpoint_time" in line
    assert reported(*usual, "--existing", "overwrite") == reported(*usual) == []
    os.utime(checkpoint, (old.st_atime, old.st_mtime))


def test_a_damaged_line_is_named(run, photos, tmp_path):
    run(photos)
    out = tmp_path / "out" / "captions.jsonl"
    texts = out.read_text().splitlines()
    for damaged in (texts[3][:40], json.dumps({"image": "a.png"})):
        out.write_text("\n".join([*texts[:3], damaged, *texts[4:]]) + "\n")
        one_error_line(run(photos, code=2)[1], f"{out}: line 4 is damaged: remove it")


@pytest.mark.slow
def test_memory_stays_flat(run, photos, tmp_path, monkeypatch):
    """1,500 more images or captions in memory would take more than 20 MB."""
    many = tmp_path / "many"
    many.mkdir()
    for number in range(2000):
        os.link(min(photos.glob("*.png")), many / f"{number}.png")
    captions, sizes = CheckpointModel.captions, []

    def measured(self, batch):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        sizes.append(pages * os.sysconf("SC_PAGE_SIZE"))
        return captions(self, batch)

    monkeypatch.setattr(CheckpointModel, "captions", measured)
    _, log = run(many, "num_beams=1", "max_length=8", "eval_batch_size=50")
    assert len(sizes) >= 40 and max(sizes[10:]) - sizes[10] < 8e6
    assert "warning: 1000 of 1000 captions are the same, " in log
