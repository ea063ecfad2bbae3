"""Errors of the user are one line, before weights are loaded or a file is written."""

import importlib.util
import os
import re
import shutil
import sys

import pytest
from filelock import FileLock

from tests.programs import one_error_line, run_program, unchanged

REFUSED = [
    (["--out", "{out}.json"], "has to be a file that ends in .jsonl"),
    (["--out", "{photos}/scene_000000.png/a.jsonl"], "cannot write"),
    (["--parquet", "{photos}"], "--parquet is"),
    (["--parquet", "{out}"], "--parquet is"),
    (["--write-shards", "{photos}/scene_000000.png"], "cannot write"),
    (["--root", "{photos}"], "--root is for a list"),
    (["--glob", "*.gif"], "found no images"),
    (["--sidecar"], "would both have the sidecar"),
    (["{out}.jpg"], "no such photo, folder or list"),
    (["--filter", "itm>0.5"], "--filter needs --itm_model, a retrieval checkpoint"),
    (["--filter", "itm>0.5", "--itm_model", "{out}"], "captions.jsonl does not exist"),
    (["--itm_model", "a"], "--itm_model needs --filter"),
    (["{out}{{1..3}}.tar"], "3 of 3 tars are missing"),
    (["--prompt", "{{title}}"], "--prompt and --concurrency are for a served model"),
    (["beams=3"], "unknown key 'beams'; did you mean 'num_beams'?"),
    (["num_beams=0"], "num_beams"),
    (["--metadata", "{photos}/a.jsonl"], "its name has to be metadata.jsonl"),
    (["--metadata", "{photos}/within/metadata.jsonl"], "is not in the folder of"),
    (["--engine", "ray", "--device", "cuda:1"], "with --engine ray it is auto, cpu or cuda"),
    # Found when the captioner is built; no unfinished run is left.
    (["--num_return", "3"], "num_return is 3 with num_beams 2"),
    (["max_length=3"], "min_length is 5, above max_length, 3"),
    (["temperature=2"], "temperature has no effect without sample=true"),
    (["rerank_weight=0.2"], "rerank_weight has no effect without rerank"),
]


@pytest.fixture
def refused(photos, checkpoint, tmp_path, loaded):
    """Return a function that calls the program, by default on the photos, which it has to refuse.

    That is: exit code 2 after one error line, which has `part` and is returned. No weights are
    loaded, and no file is written.
    """
    out = tmp_path / "out" / "captions.jsonl"
    out.parent.mkdir()

    def call(part, *flags, source=photos, out=out):
        given = [checkpoint, source, "--out", out, "--device", "cpu", *flags]
        with unchanged(tmp_path):
            code, _, log = run_program("captioning.caption", *given)
        assert code == 2 and loaded == []
        return one_error_line(log, part)

    call.out = out
    return call


def test_a_call_that_is_not_refused_loads_the_checkpoint(run, photos, checkpoint, loaded):
    """Otherwise the others would show nothing."""
    run(min(photos.glob("*.png")))
    assert loaded == [str(checkpoint)]


@pytest.mark.parametrize(("flags", "reason"), REFUSED)
def test_errors_are_one_line_before_the_captioner_is_loaded(photos, refused, flags, reason):
    shutil.copy(photos / "scene_000000.png", photos / "scene_000000.jpg")
    flags = [flag.format(out=refused.out, photos=photos) for flag in flags]
    source = photos if re.match(r"--|\w+=", flags[0]) else flags.pop()
    assert refused(reason, *flags, source=source).startswith("error: ")


@pytest.mark.parametrize("flag", ["--parquet", "--metadata"])
def test_a_table_that_would_replace_another_file_is_refused(refused, photos, monkeypatch, flag):
    monkeypatch.chdir(photos)
    listed = photos / "metadata.jsonl"
    listed.write_text('{"image": "scene_000000.png", "caption": "mine"}\n')
    refused(f"{flag} is metadata.jsonl; name another file", flag, "./metadata.jsonl", source=listed)
    captions = ["--captions", listed]
    refused(f"{flag} is metadata.jsonl; name another file", *captions, flag, "metadata.jsonl")
    out = photos / "captions.jsonl"
    refused(f"{flag} is captions.jsonl; name another file", flag, "captions.jsonl", out=out)


def test_sidecars_that_cannot_be_written_are_refused(refused, photos, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(photos / "within"))
    refused(f"--sidecar: cannot write to {photos / 'within'}", "--sidecar")
    (photos / "scene_000000.txt").mkdir()
    refused(f"{photos / 'scene_000000.txt'}: cannot be read: Is a directory", "--sidecar")


@pytest.mark.parametrize("extension", [".Jpeg", ".small.png", ".", "", ".a/b", "txt"])
def test_suffixes_of_sidecars_that_would_replace_photos_are_refused(refused, extension):
    line = refused("error: ", "--sidecar", extension, "--existing", "overwrite")
    assert "--sidecar" in line and "such as .txt" in line


INPUTS = [
    (["{photos}", "--glob", "*.IMG"], ".img"),  # an image with an unusual suffix
    (["{photos}/one.txt"], ".txt"),  # the list
    (["{photos}/one.txt"], ".jsonl"),  # --out
    (["{photos}/one.txt"], ".jsonl.done"),
]


@pytest.mark.parametrize(("given", "extension"), INPUTS)
def test_sidecars_that_would_replace_an_input_or_output_are_refused(
    photos, refused, given, extension
):
    shutil.copy(photos / "scene_000000.png", photos / "one.png")
    shutil.copy(photos / "scene_000000.png", photos / "two.IMG")
    (photos / "one.txt").write_text("scene_000001.png\none.png\n")
    source, *flags = (name.format(photos=photos) for name in given)
    flags += ["--sidecar", extension, "--existing", "overwrite"]
    reason = "would replace an input or output file: choose another --sidecar"
    refused(reason, *flags, source=source, out=f"{photos}/one.jsonl")


def test_an_output_that_another_program_writes_is_refused(refused):
    with FileLock(f"{refused.out}.lock"):
        refused("another program is writing it")


def test_a_cluster_that_is_not_there_is_refused(refused, monkeypatch):
    if importlib.util.find_spec("ray"):
        refused("docs/captioning.md says how to start a cluster", "--engine", "ray")
    monkeypatch.setitem(sys.modules, "ray", None)
    refused("docs/captioning.md says how to start a cluster", "--engine", "ray")
