"""Errors of the user are one line, before weights are loaded or a file is written."""

import os
import shutil
import sys

import pytest
from filelock import FileLock

from tests import programs

TOGETHER = "--filter and --itm_model, a retrieval checkpoint of BLIP, go together"
NO_TEXT = "it has to be a suffix of texts, such as .txt"
REFUSED = [
    (["--out", "{out}.json"], "has to be a file that ends in .jsonl"),
    (["--out", "https://host/a.jsonl"], "an output is on https; use a path on a disk or in a"),
    (["--parquet", "{out}"], "captions.jsonl would be replaced; name another output"),
    (["--write-shards", "{photos}/scene_000000.png"], "cannot write"),
    (["--glob", "*.gif"], "found no images"),
    (["--glob", "*.png", "{photos}/scene_000000.png"], "--glob has no effect on"),
    (["--root", "{photos}"], "--root has no effect on"),
    (["--sidecar", ".txt"], "would both have the sidecar"),
    (["--sidecar", "txt"], NO_TEXT),
    (["--sidecar", ".Jpeg"], NO_TEXT),
    (["{out}.jpg"], "no such photo, folder or list"),
    (["--filter", "itm>0.5"], TOGETHER),
    (["--itm_model", "a"], TOGETHER),
    (["--filter", "itm>1", "--itm_model", "{out}"], "write it as 'itm>0.5', from 0 to below 1"),
    (["--filter", "itm>0.5", "--itm_model", "{out}"], "captions.jsonl does not exist"),
    (["--sidecar", ".xmp"], "scene_000000.xmp: not an XMP sidecar"),
    (["--sidecar", ".txt", "{photos}/a.tar"], "--sidecar does not work with a .tar"),
    (["--prompt", "{{title}}"], "--prompt and --concurrency are for a served model"),
    (["beams=3"], "unknown key 'beams'; did you mean 'num_beams'?"),
    (["num_beams=0"], "num_beams"),
    (["--metadata", "{photos}/within/metadata.jsonl"], "is not in the folder of"),
    (["s3://user:S3CR3T@bucket/a"], "s3://bucket/a: an address with a user or a query may"),
    (["https://host/folder/"], "an https server has no folders: give a list of its files"),
    # Found when the captioner is built; no unfinished run is left.
    (["--num_return", "3"], "num_return is 3 with num_beams 2"),
    (["max_length=3"], "min_length is 5, above max_length, 3"),
    (["temperature=2"], "temperature has no effect without sample=true"),
    (["rerank_weight=0.2"], "rerank_weight has no effect without rerank"),
]


@pytest.fixture
def refused(photos, given, tmp_path, load):
    """Return a function that calls the program, which has to refuse before it loads or writes."""
    (tmp_path / "out").mkdir()

    def call(part, *flags, source=photos):
        with programs.unchanged(tmp_path):
            words = given(*flags, source=source)
            line = programs.refused("captioning.caption", *words, part=part)
        assert not load.called and "S3CR3T" not in line

    return call


@pytest.mark.parametrize(("flags", "reason"), REFUSED)
def test_errors_are_one_line_before_the_captioner_is_loaded(
    photos, refused, tmp_path, flags, reason
):
    shutil.copy(photos / "scene_000000.png", photos / "scene_000000.jpg")
    (photos / "scene_000000.xmp").write_text("<x")
    (photos / "a.tar").touch()
    flags = [flag.format(out=tmp_path / "out/captions.jsonl", photos=photos) for flag in flags]
    # An odd word is INPUT.
    source = flags.pop() if len(flags) % 2 and "=" not in flags[0] else photos
    refused(reason, *flags, source=source)


def test_sidecars_that_cannot_be_written_are_refused(refused, photos, monkeypatch):
    (photos / "scene_000000.txt").mkdir()
    refused(f"{photos / 'scene_000000.txt'}: cannot be read: Is a directory", "--sidecar")
    (listed := photos / "scene_000001.txt").write_text("scene_000001.png\n")
    refused(f"its sidecar {listed} would replace", "--sidecar", source=listed)
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(photos / "within"))
    refused(f"--sidecar: cannot write to {photos / 'within'}", "--sidecar", "--glob", "*9.png")


def test_an_output_that_another_program_writes_is_refused(refused, tmp_path):
    with FileLock(tmp_path / "out/captions.jsonl.lock"):
        refused("another program is writing it")


def test_a_cluster_that_is_not_there_is_refused(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    refused("docs/captioning.md says how to start a cluster", "--engine", "ray")
