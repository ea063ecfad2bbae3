"""What is said of a run's data before its first step, and --check, which does that alone."""

import json

import pytest

from captioning.data import sources
from tests.programs import one_error_line, run_program, unchanged


@pytest.fixture
def check(tmp_path, scenes, scenes_config):
    """Return a function that checks files with a row per image, and returns what is said.

    missing, empty: the name of a photo.
    """
    folder = tmp_path / "data"
    folder.mkdir()

    def run(*arguments, code=0, missing=None, empty=None, **rows):
        for split in ("train", "val", "test"):
            default = [{"image": f"{split}{n}.png", "caption": ["a red star"]} for n in range(9)]
            found = rows.get(split, default)
            (folder / f"scenes_{split}.json").write_text(json.dumps(found))
            for row in found:
                if isinstance(row, dict) and row["image"] not in (None, missing):
                    text = "" if row["image"] == empty else "checked when it is read"
                    (folder / row["image"]).write_text(text)
        given = (f"image_root={folder}", f"ann_root={folder}", f"tokenizer={scenes}/vocab.txt")
        flags = ("--config", scenes_config, "--output_dir", tmp_path / "run", "--check")
        with unchanged(tmp_path):
            ended = run_program("captioning.train", *flags, *given, *arguments)
        assert ended.code == code, ended.err
        return ended.err

    return run


def test_a_check_counts_images_and_captions_and_loads_no_weights(check):
    counts = [f"{split} 9 images with 9 captions" for split in ("train", "val", "test")]
    log = check("pretrained=/no/weights.pth", "device=cuda")
    assert log == f"data: {', '.join(counts)}\n"
    assert check("test_file=") == f"data: {', '.join(counts[:2])}\n"
    one_error_line(check("tokenizer=/nowhere", code=2), "tokenizer: /nowhere is not")
    reward = ("reward={facts: 1}", "facts_file=nowhere.json")
    one_error_line(check(*reward, code=2), "nowhere.json: no such file")


def test_each_kind_of_flaw_is_a_line_with_a_count_and_an_example(check):
    captions = [["a red star"]] * 20 + [["a red star " * 20], ["a Hund"], ["a Hund", ""], []]
    train = [{"image": f"{n}.png", "caption": given} for n, given in enumerate(captions)]
    log = check("skip_bad_images=true", train=train).splitlines()
    assert log[0].endswith("scenes_train.json: 1 of 24 captions are blank, such as of 22.png")
    assert "1 of 24 images have no caption, such as 23.png: they are left out" in log[1]
    assert log[2].startswith("data: train 23 images with 23 captions, val 9 images")
    assert log[3].startswith("training cuts 1 of 23 captions, such as 'a red star a red")
    assert "unknown to the vocabulary, such as 'Hund'" in log[4] and len(log) == 5
    # A caption of 20 words: whole, cut by max_words and cut by max_tokens, which counts the prompt
    # "a picture of ", a start and an end.
    train = [{"image": f"{n}.png", "caption": ["red " * 20]} for n in range(9)]
    for keys, is_cut in {(20, 25): False, (19, 25): True, (20, 24): True}.items():
        words, tokens = keys
        log = check(f"max_words={words}", f"max_tokens={tokens}", train=train)
        assert ("training cuts 9 of 9" in log) == is_cut, log


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_missing_photo_of_any_split_is_told_before_training(check, tmp_path, split):
    photo = f"{split}3.png"
    line = f"1 of 27 photos do not exist or are empty, such as {tmp_path}/data/{photo}"
    log = check(missing=photo, code=2)
    one_error_line(log, f"{line}: correct image_root, or set skip_bad_images=true")
    assert f"{line}\n" in check("skip_bad_images=true", missing=photo)
    if split == "test":
        check("test_file=", missing=photo)  # not trained on, and not named
    one_error_line(check(empty=photo, code=2), line)


def test_many_photos_are_looked_for_with_a_bar(check, monkeypatch):
    assert sources.SHOWN_FROM == 100_000
    monkeypatch.setattr(sources, "SHOWN_FROM", 26)
    log = check(missing="train7.png", code=2)
    assert "checking photos: 100%" in log and "error: 1 of 27 photos do not exist" in log


def test_bad_rows_are_left_out_and_counted_on_demand(check):
    train = [{"image": f"{n}.png", "caption": "a red star"} for n in range(9)]
    bad = [{"image": None, "caption": "a"}, {"image": "8.png", "image_id": True}, 5]
    train = [*train[:-1], *bad]
    error = "scenes_train.json: row 9 has no image: expected text in a column image"
    line = one_error_line(check(train=train, code=2), error)
    assert line.endswith("; or set skip_bad_images=true to leave them out")
    log = check("skip_bad_images=true", train=train)
    assert "3 bad rows are left out: " in log and error in log and "train 8 images with 8" in log
    line = one_error_line(check("skip_bad_images=true", train=bad, code=2), "row 1 has no image")
    assert "skip_bad_images" not in line
