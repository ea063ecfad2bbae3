"""A folder of images made small: sizes, names, what is bad, and how it goes on."""

import io
import os
import re
import signal
import time

import numpy as np
import pytest
from PIL import Image

from captioning import resize
from captioning.data import load_image
from tests.programs import refused, run_program

SHAPES = np.random.default_rng(4).integers(0, 256, (9, 12, 3), dtype=np.uint8)


def scene(width, height):
    return Image.fromarray(SHAPES).resize((width, height), Image.BICUBIC)


@pytest.fixture
def folder(tmp_path):
    """Return a folder of images in folders, of several formats and sizes."""
    source = tmp_path / "images"
    for name, size in {
        "wide.jpg": (400, 200),
        "a/tall.png": (90, 300),
        "a/b/tiny.jpg": (60, 40),
        "a/large.webp": (640, 480),
        "grey.PNG": (100, 64),
    }.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        image = scene(*size)
        (image.convert("L") if "grey" in name else image).save(source / name)
    (source / "notes.txt").write_text("no image")
    return source


def files(folder):
    return {str(path.relative_to(folder)): path for path in folder.rglob("[!.]*") if path.is_file()}


def test_names_stay_and_the_shorter_side_becomes_the_one_asked_for(folder, tmp_path):
    target = tmp_path / "small"
    code, _, said = run_program("captioning.resize", folder, target, "--side=64", "--workers=3")
    assert code == 0 and "5 images: 3 resized, 2 copied; the folder is" in said
    sizes = {name: load_image(path).size for name, path in files(target).items()}
    assert sizes == {
        "wide.jpg": (128, 64),
        "a/tall.png": (64, 213),
        "a/b/tiny.jpg": (60, 40),
        "a/large.webp": (85, 64),
        "grey.PNG": (100, 64),
    }
    for name in ("a/b/tiny.jpg", "grey.PNG"):  # no larger: the very file
        assert (target / name).read_bytes() == (folder / name).read_bytes()
    for name in files(target):
        with Image.open(folder / name) as before, Image.open(target / name) as after:
            assert before.format == after.format
    tall = np.asarray(load_image(target / "a/tall.png"))
    assert np.array_equal(tall, scene(90, 300).resize((64, 213), Image.BICUBIC))
    wide = np.asarray(load_image(target / "wide.jpg")).astype(int)
    assert np.abs(wide - np.asarray(scene(400, 200).resize((128, 64), Image.BICUBIC))).mean() < 4


@pytest.mark.parametrize("compression", ["tiff_lzw", "group4", "jpeg"])
def test_a_compressed_tiff_is_written_whole(tmp_path, compression):
    image = scene(100, 64).convert("1" if compression == "group4" else "RGB")
    image.save(tmp_path / "a.tiff", compression=compression)
    outcome, content = resize.resize_image(tmp_path / "a.tiff", 32)
    resized = Image.open(io.BytesIO(content))
    assert (outcome, resized.format, resized.size) == ("resized", "TIFF", (50, 32))


def test_bad_images_are_named_and_the_others_are_there(folder, tmp_path):
    (folder / "a/empty.jpg").write_bytes(b"")
    whole = (folder / "wide.jpg").read_bytes()
    (folder / "half.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "a/b/half.jpg").write_bytes((folder / "a/b/tiny.jpg").read_bytes()[:-200])
    target = tmp_path / "small"
    code, _, said = run_program("captioning.resize", folder, target, "--side", "64")
    for name in ("a/empty.jpg", "half.jpg", "a/b/half.jpg"):
        assert f"{folder / name}: not a readable image" in said
    assert code == 0 and "8 images: " in said and "3 cannot be read" in said
    assert len(files(target)) == 5


def test_stopped_it_goes_on_with_what_is_not_there(folder, tmp_path, monkeypatch):
    target, made, make = tmp_path / "small", [], resize.resize_file

    def counted(name, **more):
        made.append(name)
        if len(made) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)  # until the images that have not begun are cancelled
        return make(name, **more)

    monkeypatch.setattr(resize, "resize_file", counted)
    command = ["captioning.resize", folder, target, "--side", "64", "--workers", "1"]
    code, _, said = run_program(*command)
    assert code == 0 and "stopped by SIGTERM; run the same command again to continue" in said
    kept = {name: path.stat().st_mtime_ns for name, path in files(target).items()}
    assert 2 <= len(kept) < 5 and kept.keys() == {*made}  # with the one that was under way
    (target / ".wide.jpg.1.staged").write_bytes(b"of a killed program")
    code, _, said = run_program(*command)
    assert code == 0 and f"{len(kept)} there already" in said
    assert sorted(made) == sorted({*made}) and files(target).keys() == {*made}
    assert all((target / name).stat().st_mtime_ns == at for name, at in kept.items())
    assert not list(target.rglob("*.staged"))


@pytest.mark.parametrize(
    ("source", "target", "line"),
    [
        ("none", "small", "none: no such folder"),
        ("empty", "small", "empty contains no images"),
        ("images", "images", "images is .*images or inside it: give a folder outside"),
        ("images", "images/small", "images/small is .*images or inside it"),
        ("images", "other", "other was made with another --side"),
        ("images", "file", "cannot write .*file"),
    ],
)
def test_an_impossible_folder_is_one_line(folder, tmp_path, source, target, line):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("a file")
    assert run_program("captioning.resize", folder, tmp_path / "other", "--side", "32").code == 0
    command = ["captioning.resize", tmp_path / source, tmp_path / target, "--side", "64"]
    assert re.search(line, refused(*command))
    assert len(files(folder)) == 6
