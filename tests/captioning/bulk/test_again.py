"""A second call: after a stop, with other settings, with more images, or after damage."""

import json
import os
import shutil

import pytest
import torch

from BLIP import BlipCaptioner
from captioning.bulk.model import CheckpointModel
from captioning.bulk.plan import Plan
from captioning.files.columns import normal_name
from tests.captioning.bulk.conftest import read_lines, stopped_after
from tests.programs import one_error_line


@pytest.fixture
def run_in_part(run):
    """Return a function that is stopped after so many batches."""

    def call(*given, batches=1):
        with stopped_after(batches):
            return run(*given, "eval_batch_size=2", "num_workers=0")

    return call


@pytest.mark.parametrize("workers", [pytest.param("0", marks=pytest.mark.slow), "2"])
def test_a_signal_ends_it_after_the_batch_and_it_continues(run, photos, tmp_path, workers):
    whole, _ = run(photos)
    shutil.rmtree(tmp_path / "out")
    flags = ["eval_batch_size=2", "--shard_size", "5", f"num_workers={workers}"]
    with stopped_after(2) as made:
        lines, log = run(photos, *flags)
        assert not lines and "stopped by SIGTERM; run the same command again to continue" in log
        assert len(made) == 4
        lines, log = run(photos, *flags)
    assert "continuing" in log and "4/10" in log
    assert made == [line["image"] for line in lines]  # each was captioned once
    assert [line["caption"] for line in lines] == [line["caption"] for line in whole]
    assert sorted(os.listdir(tmp_path / "out")) == ["captions.jsonl", "captions.jsonl.done"]


def test_out_of_memory_it_goes_on_with_smaller_batches(run, photos, monkeypatch):
    whole, _ = run(photos)
    generate, made, most = BlipCaptioner.generate_details, [], [2]

    def short_of_memory(self, image, settings):
        if len(image) > most[0]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        made.append(len(image))
        return generate(self, image, settings)

    monkeypatch.setattr(BlipCaptioner, "generate_details", short_of_memory)
    lines, log = run(photos, "--existing", "overwrite", "eval_batch_size=6")
    assert lines == whole and max(made) <= 2 and sum(made) == 10
    notices = [line for line in log.splitlines() if "out of GPU memory" in line]
    assert len(notices) == 2 and notices[0].endswith("6 images at once; from now on 3")
    most[0] = 0
    _, log = run(photos, "--existing", "overwrite", code=2)
    one_error_line(log, "error: out of GPU memory with a single image; lower")


def test_an_unfinished_run_can_be_dropped(run, photos, tmp_path, monkeypatch):
    keep, tars = Plan.keep, tmp_path / "tars"

    def fail(self, unit, *given):
        if unit == 1:
            monkeypatch.setattr(os, "fsync", full_disk)
        return keep(self, unit, *given)

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    flags = ["--shard_size", "4", "--write-shards", str(tars)]
    monkeypatch.setattr(Plan, "keep", fail)
    _, log = run(photos, *flags, code=2)
    monkeypatch.undo()
    assert one_error_line(log, "No space left on device")
    assert sorted(os.listdir(tars)) == ["00000.tar", "00001.tar"]
    assert "or abandon it with --restart" in run(photos, *flags, "num_beams=1", code=2)[1]
    lines, _ = run(photos, "num_beams=1", "--restart")
    assert len(lines) == 10 and lines[0]["settings"]["num_beams"] == 1
    assert os.listdir(tars) == []  # the tars of the dropped run
    plan = tmp_path / "out" / "captions.jsonl.parts" / "plan.json"
    for content in ('{"settings": {}, "shard_size": 32}', '{"set'):  # of an earlier version; torn
        plan.parent.mkdir()
        plan.write_text(content)
        one_error_line(run(photos, code=2)[1], "plan.json is damaged or of another version")
        assert run(photos, "--restart")[0] == lines and not plan.parent.exists()


def test_an_unfinished_run_refuses_another_input_and_other_settings(
    run, run_in_part, photos, tmp_path
):
    other = shutil.copytree(photos, tmp_path / "other")
    run_in_part(photos)
    for given, line in (
        ([other], f"input ['{photos}'], this call has ['{other}']: "),
        ([photos, "--glob", "*1.png"], "glob None, this call has '*1.png': "),
        ([photos, "--prefix", "a "], "prefix '', this call has 'a '"),
        ([photos, "num_beams=1"], "num_beams None, this call has 1"),
    ):
        assert f"the unfinished run has {line}" in run(*given, code=2)[1]
    images = sorted(map(str, photos.rglob("*.png")))
    lines, _ = run(f"{photos.parent}/./photos/")  # the same folder
    assert [line["image"] for line in lines] == images
    lines, _ = run(other)
    assert [line["image"] for line in lines[10:]] == sorted(map(str, other.rglob("*.png")))


def test_images_added_later_are_captioned_too(run, run_in_part, photos, expected):
    """--existing overwrite applies to them as in an undisturbed run."""
    source, late = min(photos.glob("scene*.png")), photos / "aa.png"
    (photos / "bad.png").write_text("no image")
    source.with_suffix(".txt").write_text("a tag\n")
    flags = ["--sidecar", "--existing", "overwrite"]
    run_in_part(photos, *flags)
    shutil.copy(source, late)
    late.with_suffix(".txt").write_text("a tag\n")
    lines, log = run(photos, *flags)
    after = {line["image"]: line["caption"] for line in lines}
    assert len(lines) == len(after) == 11 and "done 11" in log and "skipped 0, failed 1" in log, log
    assert after[str(source)] == after[str(late)] == expected(source)[0][0]
    assert late.with_suffix(".txt").read_text() == after[str(late)] + "\n"


def test_names_of_one_photo_are_one_image(run, photos, tmp_path, monkeypatch):
    """In one call, and in calls one after another."""
    monkeypatch.chdir(tmp_path)
    names = ["photos", "./photos/", str(photos), "photos/within/../within"]
    lines, _ = run(*names)
    assert [line["image"] for line in lines] == [
        normal_name(f"photos/{path.relative_to(photos)}") for path in sorted(photos.rglob("*.png"))
    ]
    for name in names:
        again, log = run(name)
        assert again == lines and "done 0" in log
    monkeypatch.chdir(photos)
    here, _ = run(".", folder="here")
    assert [line["image"] for line in here] == [
        line["image"].removeprefix("photos/") for line in lines
    ]


def test_temporary_files_of_a_killed_program_are_removed_whatever_the_name(call, tmp_path):
    left = tmp_path / ".a [1].jsonl.7.ab.staged"
    left.touch()
    call(out=tmp_path / "a [1].jsonl")
    assert not left.exists()


def test_captions_made_with_other_settings_or_weights_are_reported(
    run, photos, tmp_path, checkpoint
):
    def reported(*flags):
        log = run(photos, *flags)[1]
        return [line for line in log.splitlines() if "which stay; --existing overwrite" in line]

    usual = ["max_length=8", "--prefix", "a "]
    lines, _ = run(photos, *usual)
    [line] = reported("num_beams=1", "max_length=9", "--prefix", "b ")
    assert "has captions made with max_length 8, num_beams None, prefix 'a ', which stay" in line
    assert read_lines(tmp_path / "out/captions.jsonl") == lines
    assert reported(*usual) == []
    old = checkpoint.stat()
    os.utime(checkpoint, (0, 1))
    [line] = reported(*usual)
    assert "made with checkpoint_time" in line
    assert reported(*usual, "--existing", "overwrite") == reported(*usual) == []
    os.utime(checkpoint, (old.st_atime, old.st_mtime))
    tars = tmp_path / "tars"  # the captions that exist are not in it
    [line] = reported(*usual, "--write-shards", tars)
    assert "write_shards None" in line and not list(tars.iterdir())


def test_captions_made_with_another_prompt_of_the_list_are_reported(run, photos, tmp_path):
    def reported(*prompts):
        names = (path.name for path in sorted(photos.glob("[!l]*.*")))
        rows = [f"{name},{prompt}" for name, prompt in zip(names, prompts)]
        (photos / "list.csv").write_text("\n".join(["image,prompt", *rows]))
        log = run(photos / "list.csv", folder="prompts")[1]
        return [line for line in log.splitlines() if "another prompt, which stay" in line]

    assert reported("a", "the", "") == reported("a", "the", "") == []
    [line] = reported("the", "the", "a")
    assert line.startswith("2 images have captions made with another prompt, which stay; --exist")


def test_damaged_and_repeated_lines_are_named_and_left_out(run, photos, tmp_path):
    whole, _ = run(photos, "--sidecar")
    out = tmp_path / "out" / "captions.jsonl"
    texts = out.read_text().splitlines()
    texts[3], texts[5] = texts[3][:40], texts[4]
    out.write_text("\n".join(texts) + "\n")
    for path in sorted(photos.glob("*.txt")):
        path.unlink()  # otherwise they count as captions
    _, log = run(photos, "--sidecar", code=2)
    assert "captions.jsonl: line 4 is damaged, or repeats an image: --verify" in log
    lines, log = run(photos, "--sidecar", "--verify")
    assert "done 2" in log and "skipped 8" in log
    assert sorted(map(json.dumps, lines)) == sorted(map(json.dumps, whole))
    assert len(list(photos.rglob("*.txt"))) == 10  # those of skipped images, too


def resident():
    """Bytes of memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_memory_stays_flat(run, photos, tmp_path, monkeypatch):
    """1,500 more images or captions in memory would take more than 20 MB."""
    names = sorted(photos.rglob("*.png"))
    many = tmp_path / "many"
    many.mkdir()
    for number in range(2000):
        os.link(names[number % len(names)], many / f"{number:04d}.png")
    sizes, lines = [], CheckpointModel.lines

    def measured(self, batch):
        sizes.append(resident())
        return lines(self, batch)

    monkeypatch.setattr(CheckpointModel, "lines", measured)
    run(many, "num_beams=1", "max_length=8", "eval_batch_size=50")
    assert len(sizes) >= 40
    assert max(sizes[10:]) - sizes[10] < 8e6
