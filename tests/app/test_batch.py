"""The ZIP of several good and bad photos."""

import json
import shutil
import zipfile

import pytest

from app.options import read_options
from app.photos import Limits
from app.service import CaptionService, caption_all
from app.view import write_zip
from captioning.runtime.errors import UserError

OPTIONS = read_options({"max_length": 12, "num_beams": 1})


def test_zip_of_good_and_bad_photos(service, files, tmp_path):
    (tmp_path / "more").mkdir()
    shutil.copy(files / "photo.jpg", tmp_path / "more" / "photo.jpg")
    paths = [files / "photo.jpg", files / "cut.jpg", tmp_path / "more" / "photo.jpg"]
    photos = [(path, path.name) for path in paths]
    chosen = [checkpoint.label for checkpoint in service.checkpoints[1:]]
    done = list(caption_all(service, photos, chosen, OPTIONS))
    write_zip(done, tmp_path / "captions.zip")
    with zipfile.ZipFile(tmp_path / "captions.zip") as archive:
        content = {name: archive.read(name).decode() for name in archive.namelist()}
    records = [json.loads(line) for line in content.pop("captions.jsonl").splitlines()]
    (failed,) = (json.loads(line) for line in content.pop("failed.jsonl").splitlines())
    assert failed["image"] == "cut.jpg" and "truncated" in failed["reason"]
    assert [(r["image"], r["label"]) for r in records] == [
        ("photo.jpg", label) for _ in range(2) for label in chosen
    ]
    caption = records[0]["caption"]
    assert content == {
        "SMILE/photo.txt": caption + "\n",
        "SMILE/photo_2.txt": caption + "\n",
        "MLE+SMILE 0.5_0.5/photo.txt": records[1]["caption"] + "\n",
        "MLE+SMILE 0.5_0.5/photo_2.txt": records[1]["caption"] + "\n",
    }


def test_too_many_photos_are_refused_before_any_is_read(service, files):
    small = CaptionService(service.checkpoints, Limits(photos=2))
    photos = [(files / "no such", "a.jpg")] * 3
    with pytest.raises(UserError, match="3 photos; this page takes up to 2 at a time"):
        next(caption_all(small, photos, ["MLE"], OPTIONS))
