"""A folder of good and bad files, captioned by the command line."""

import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from captioning.bulk.model import CheckpointModel
from tests.captioning.bulk.conftest import contents, read_lines
from tests.captioning.data.caption_formats import write_captions
from tests.programs import run_program


def test_every_photo_has_the_captioners_caption(run, photos, expected, checkpoint):
    lines, log = run(photos)
    assert [line["image"] for line in lines] == sorted(map(str, photos.rglob("*.png")))
    for line in lines:
        captions, scores = expected(line["image"])
        assert line["caption"] == captions[0] and "captions" not in line
        assert line["score"] == pytest.approx(scores[0], abs=1e-4)
        assert line["checkpoint"] == str(checkpoint)
    assert lines[0]["settings"] == {
        **{"num_beams": 2, "max_length": 9, "min_length": 5, "length_penalty": 1.0},
        **{"repetition_penalty": 1.0, "num_return_sequences": 1, "precision": "fp32"},
    }
    assert "10/10" in log and "img/s" in log and "done 10, skipped 0, failed 0" in log
    assert len({line["caption"] for line in lines}) == 10


@pytest.mark.parametrize("settings", [{"max_length": 7}, {"guidance_scale": 2.0}])
def test_decoding_settings_of_the_command_line_are_used_and_recorded(
    run, photos, expected, settings
):
    settings = {"num_beams": 3, "length_penalty": 0.5, **settings}
    words = [f"{key}={value}" for key, value in settings.items()]
    lines, _ = run(photos, *words, "--num_return", "2", "--prefix", "<", "--suffix", ">")
    for line in lines:
        captions, scores = expected(line["image"], num_return=2, **settings)
        assert line["captions"] == [f"<{text}>" for text in captions]
        assert line["caption"] == line["captions"][0]
        assert line["scores"] == pytest.approx(scores, abs=1e-4)
        assert {"num_return_sequences": 2, **settings}.items() <= line["settings"].items()
        # Scores of a guided caption are those of the guided model, and the captioner's own.
        assert ("own_scores" in line) == ("guidance_scale" in settings)
        assert line.get("own_scores") != line["scores"]


def test_samples_depend_on_the_seed_alone(run, photos):
    def sampled(*arguments):
        flags = ["sample=true", "top_p=1", "temperature=2", "--num_return", "2"]
        lines, _ = run(photos, "--shard_size", "4", *flags, *arguments, folder="".join(arguments))
        assert lines[0]["settings"]["do_sample"] and "num_beams" not in lines[0]["settings"]
        return [line["captions"] for line in lines]

    first = sampled("seed=5")
    assert sampled("seed=5", "num_workers=2") == first != sampled("seed=6")
    assert any(one != two for one, two in first)


def test_reranked_captions_come_in_the_order_of_their_scores(run, photos):
    flags = ["rerank=mmi", "num_candidates=4", "top_k=0", "--num_return", "3"]
    lines, _ = run(photos, *flags, "eval_batch_size=3")
    for line in lines:
        assert len(line["captions"]) == len(line["scores"]) == 3
        assert line["rerank_scores"] == sorted(line["rerank_scores"], reverse=True)
        assert line["rerank_score"] == line["rerank_scores"][0]
        assert {"rerank": "mmi", "rerank_weight": 0.5}.items() <= line["settings"].items()


def test_captions_that_end_at_max_length_are_marked_and_counted(run, photos):
    """Greedy captions are the beginnings of longer ones."""
    greedy = ["num_beams=1", "min_length=1", "--existing", "overwrite"]
    longer, _ = run(photos, *greedy, "max_length=30")
    lines, log = run(photos, *greedy, "max_length=6")
    cut = [line.get("cut", False) for line in lines]
    differ = [one["caption"] != two["caption"] for one, two in zip(longer, lines)]
    assert 0 < sum(differ) <= sum(cut) < 10
    assert all(is_cut for is_cut, differs in zip(cut, differ) if differs)
    assert f"{sum(cut)} captions were cut at max_length; their lines have cut: true" in log


def test_bad_images_are_reported_and_do_not_end_the_run(run, photos, failed, monkeypatch):
    content = next(photos.glob("*.png")).read_bytes()
    (photos / "cut.png").write_bytes(content[: len(content) // 2])
    (photos / "empty.jpg").write_bytes(b"")
    (photos / "gone.jpg").symlink_to(photos / "nowhere.jpg")
    (photos / "zeros.jpg").symlink_to("/dev/zero")
    os.mkfifo(photos / "pipe.jpg")
    Image.new("CMYK", (40, 30), (10, 20, 30, 40)).save(photos / "cmyk.jpg")
    Image.new("L", (1, 300)).save(photos / "thin.png")
    (photos / ".hidden.jpg").write_text("not meant")
    lines, log = run(photos)
    assert len(lines) == 12 and "failed 5" in log and "--retry-failed" in log
    reasons = {"cut.png": "truncated", "empty.jpg": "not a readable", "gone.jpg": "no such image"}
    for name in ("zeros.jpg", "pipe.jpg"):  # and do not block
        reasons[name] = "not a readable image (not a regular file)"
    assert failed().keys() == reasons.keys()
    assert all(reason in failed()[name] for name, reason in reasons.items())
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointModel, "__init__", lambda *a: pytest.fail("nothing is to be done"))
        again, log = run(photos)
    assert again == lines and "done 0, skipped 17, failed 5" in log
    shutil.copy(photos / "thin.png", photos / "cut.png")
    lines, log = run(photos, "--retry-failed")
    assert lines[-1]["image"].endswith("cut.png") and "done 1, skipped 12, failed 4" in log


def test_the_program_fails_if_no_image_has_a_caption(run, tmp_path):
    (tmp_path / "bad.png").write_text("no image")
    _, log = run(tmp_path / "bad.png", code=2)
    assert "done 0" in log and "error: none of 1 images has a caption" in log


@pytest.mark.parametrize("existing", ["skip", "overwrite"])
def test_existing_captions_are_kept_or_replaced(run, photos, existing):
    before, _ = run(photos)
    new = shutil.copy(photos / "within" / "scene_000009.png", photos / "new.png")
    lines, log = run(photos, "--existing", existing, "--prefix", "<")
    kept = {line["image"] for line in lines if not line["caption"].startswith("<")}
    assert kept == ({line["image"] for line in before} if existing == "skip" else set())
    assert len(lines) == 11 and str(new) in {line["image"] for line in lines} - kept
    assert f"done {1 if existing == 'skip' else 11}," in log


def test_images_with_captions_in_another_file_are_skipped(run, photos, tmp_path):
    one, two = min(photos.glob("*.png")), photos / "within" / "scene_000009.png"
    old = {one.name: ["a disc", "two"], "within/scene_000009.png": ["a square"]}
    file = write_captions(tmp_path, "captions.txt", old)
    lines, log = run(photos, "--captions", str(tmp_path / file))
    found = {line["image"] for line in lines}
    assert len(found) == 8 and not {str(one), str(two)} & found and "skipped 2" in log


def test_a_captions_file_that_names_no_image_or_two_is_refused(run, photos, tmp_path):
    shutil.copy(twice := photos / "within" / "scene_000009.png", photos)
    for name, line in {
        "other.png": "names other.png, and no image of",
        twice.name: f"{photos}/{twice.name} or {twice}: use longer names there",
    }.items():
        (tmp_path / "captions.txt").write_text(f"image,caption\n{name},a cat\n")
        assert line in run(photos, "--captions", str(tmp_path / "captions.txt"), code=2)[1]


def test_sidecars_have_the_captions_and_what_was_there_stays(run, photos, expected):
    tagged, empty = sorted(photos.glob("*.png"))[:2]
    tagged.with_suffix(".caption").write_text("two\nlines\n")
    empty.with_suffix(".caption").write_text("")
    lines, log = run(photos, "--sidecar", ".caption")
    assert len(lines) == 9 and "skipped 1" in log  # its sidecar is a caption
    for line in lines:
        sidecar = Path(line["image"]).with_suffix(".caption")
        assert sidecar.read_text() == expected(line["image"])[0][0] + "\n"
    gone, changed, *_ = (Path(line["image"]).with_suffix(".caption") for line in lines)
    gone.unlink()
    changed.write_text("by hand\n")
    run(photos, "--sidecar", ".caption")
    assert gone.exists() and changed.read_text() == "by hand\n"
    assert tagged.with_suffix(".caption").read_text() == "two\nlines\n"
    run(photos, "--sidecar", ".caption", "--existing", "overwrite", "--num_return", "2")
    captions = expected(tagged, num_return=2)[0]
    assert tagged.with_suffix(".caption").read_text() == "".join(f"{c}\n" for c in captions)


def test_a_file_name_that_is_not_utf8_is_kept(run, photos):
    odd = os.fsencode(photos) + b"/z\xe9.png"
    shutil.copy(min(photos.glob("*.png")), odd)
    lines, _ = run(photos, "--sidecar")
    assert os.fsencode(lines[-1]["image"]) == odd
    assert run(photos, "--sidecar")[0] == lines


def test_the_secrets_of_a_checkpoints_address_are_written_nowhere(
    given, checkpoint, tmp_path, monkeypatch
):
    shown = "https://host/models/checkpoint_best.pth"
    address = f"{shown.replace('host', 'me:SECRET@host')}?X-Signature={'SECRET' * 100}"
    monkeypatch.setattr("BLIP.checkpoint.fetch", {address: checkpoint}.__getitem__)
    monkeypatch.setattr("captioning.bulk.plan.remove", lambda folder: None)
    code, _, log = run_program("captioning.caption", address, *given()[1:])
    assert code == 0 and f"loaded {shown}: every key matched" in log
    assert {line["checkpoint"] for line in read_lines(tmp_path / "out/captions.jsonl")} == {shown}
    written = [content.decode() for content in contents(tmp_path / "out").values()]
    assert any("checkpoint_time" in text for text in written)  # the plan
    assert "SECRET" not in "".join([log, *written])
