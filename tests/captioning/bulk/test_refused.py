"""Errors of the user are one line, before a captioner is loaded."""

import os
import shutil

import pytest
import torch
from filelock import FileLock

from captioning import caption
from captioning.bulk.model import _read
from captioning.runtime.errors import UserError

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
    (["--filter", "itm>0.5"], "--filter itm>0.5 needs --itm_model, a retrieval checkpoint"),
    (["--filter", "clip>0.5", "--itm_model", "a"], "write it as 'itm>0.5'"),
    (["--filter", "itm>50", "--itm_model", "a"], "has to be from 0 to below 1"),
    (["--filter", "itm>0.5", "--itm_model", "{out}"], "captions.jsonl does not exist"),
    (["--itm_model", "a"], "--itm_model needs --filter"),
    (["{out}{{1..3}}.tar"], "3 of 3 tars are missing"),
]


@pytest.mark.parametrize(("flags", "reason"), REFUSED)
def test_errors_are_one_line_before_the_captioner_is_loaded(
    photos, tmp_path, capsys, no_captioner, flags, reason
):
    shutil.copy(photos / "scene_000000.png", photos / "scene_000000.jpg")
    out = tmp_path / "captions.jsonl"
    flags = [flag.format(out=out, photos=photos) for flag in flags]
    source = [] if flags[0].startswith(str(out)) else [str(photos)]
    assert caption.main(["x.pth", *source, "--out", str(out), "--device", "cpu", *flags]) == 2
    log = capsys.readouterr().err.splitlines()
    assert len(log) == 1 and log[0].startswith("error: ") and reason in log[0]
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_sidecars_that_cannot_be_written(run, photos, monkeypatch, no_captioner):
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(photos / "within"))
    _, log = run(photos, "--sidecar", code=2)
    assert f"--sidecar: cannot write to {photos / 'within'}" in log


@pytest.mark.parametrize("extension", [".Jpeg", ".small.png", ".", "", ".a/b", "txt"])
def test_sidecars_that_would_be_photos(run, photos, no_captioner, capsys, extension):
    before = {path: path.read_bytes() for path in photos.rglob("*.png")}
    with pytest.raises(SystemExit) as ended:
        run(photos, "--sidecar", extension, "--existing", "overwrite")
    log = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and "error: --sidecar" in log[-1] and "such as .txt" in log[-1]
    assert {path: path.read_bytes() for path in photos.rglob("*") if path.is_file()} == before


INPUTS = [
    (["{photos}", "--glob", "*.IMG"], ".img"),  # an image with an unusual suffix
    (["{photos}/one.txt"], ".txt"),  # the list
    (["{photos}/one.txt"], ".jsonl"),  # --out
    (["{photos}/one.txt"], ".jsonl.done"),
]


@pytest.mark.parametrize(("given", "extension"), INPUTS)
def test_sidecars_that_would_replace_an_input_or_output(
    photos, checkpoint, no_captioner, capsys, given, extension
):
    shutil.copy(photos / "scene_000000.png", photos / "one.png")
    shutil.copy(photos / "scene_000000.png", photos / "two.IMG")
    (photos / "one.txt").write_text("scene_000001.png\none.png\n")
    before = {path: path.read_bytes() for path in photos.rglob("*") if path.is_file()}
    given = [name.format(photos=photos) for name in given]
    given += ["--sidecar", extension, "--existing", "overwrite", "--out", f"{photos}/one.jsonl"]
    assert caption.main([str(checkpoint), *given]) == 2
    (log,) = capsys.readouterr().err.splitlines()
    assert "would replace an input or output file: choose another --sidecar" in log
    assert {path: path.read_bytes() for path in photos.rglob("*") if path.is_file()} == before


def test_a_pipe_among_the_outputs_is_refused(run, photos, tmp_path, no_captioner):
    beside = min(photos.glob("*.png")).with_suffix(".txt")
    os.mkfifo(beside)
    _, log = run(photos, "--sidecar", code=2)
    assert f"{beside} is not a regular file: remove it, or choose another --sidecar" in log
    for name in ("captions.jsonl", "failed.jsonl", "captions.jsonl.done"):
        os.mkfifo(tmp_path / "out" / name)
        assert "it has to be a file that ends in .jsonl" in run(photos, code=2)[1]
        (tmp_path / "out" / name).unlink()


def test_two_programs_do_not_write_one_file(run, photos, tmp_path, no_captioner):
    (tmp_path / "out" / "captions.jsonl.parts").mkdir(parents=True)
    with FileLock(str(tmp_path / "out" / "captions.jsonl.parts" / "lock")):
        _, log = run(photos, code=2)
    assert "another program is writing it" in log


SAMPLING = {"top_p": "0.5", "top_k": "3", "temperature": "2", "min_p": "0.1", "typical_p": "0.5"}
TOGETHER = [
    (["--num_return", "3"], "num_return is 3 with num_beams 2"),
    (["--max_length", "3"], "min_length is 5, above max_length, 3"),
    *(([f"--{name}", value], f"--{name} needs --do_sample") for name, value in SAMPLING.items()),
]


@pytest.mark.parametrize(("flags", "line"), TOGETHER)
def test_settings_that_do_not_go_together(run, photos, tmp_path, flags, line):
    _, log = run(photos, *flags, code=2)
    assert log.startswith(f"error: {line}") and log.count("\n") == 1
    assert not list((tmp_path / "out").iterdir())  # no unfinished run is left


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--ray-address", "127.0.0.1:1"], "no server answers"),
        (["--ray-address", "ray://127.0.0.1:10001"], "it has to be auto or HOST:PORT"),
        (["--ray-address", "node1"], "it has to be auto or HOST:PORT"),
        (["--device", "cuda:1"], "with --engine ray it is auto, cpu or cuda"),
    ],
)
def test_a_cluster_that_cannot_be_used(run, photos, no_captioner, flags, reason):
    pytest.importorskip("ray", reason="requirements-cluster.txt has it")
    _, log = run(photos, "--engine", "ray", *flags, code=2)
    assert len(log.splitlines()) == 1 and reason in log


def test_ray_is_missing_or_not_requested(run, photos, monkeypatch, no_captioner, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    _, log = run(photos, "--engine", "ray", code=2)
    assert log.splitlines() == ["error: --engine ray needs the ray library: pip install ray"]
    monkeypatch.undo()
    with pytest.raises(SystemExit):
        run(photos, "--ray-address", "auto")
    assert "--ray-address needs --engine ray" in capsys.readouterr().err
    monkeypatch.setenv("WORLD_SIZE", "2")
    _, log = run(photos, code=2)
    assert "use --engine ray for several processes" in log


def test_several_gpus_use_ray_if_it_is_installed(monkeypatch, capsys):
    def engine(*given):
        arguments = caption.parse_arguments(["x.pth", "photos", "--out", "a.jsonl", *given])
        cluster = caption.choose_cluster(arguments)
        return "process" if cluster is None else "ray"

    assert engine() == "process"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for found, expected in ((None, "process"), (True, "ray")):
        monkeypatch.setattr("importlib.util.find_spec", lambda name, found=found: found)
        assert engine() == expected
        assert engine("--device", "cpu") == engine("--engine", "process") == "process"
        assert ("on one of 2 GPUs" in capsys.readouterr().err) == (expected == "process")


def test_a_photo_that_a_captioner_refuses_is_named(photos):
    def refuse(image, prompt):
        raise ValueError(f"{prompt}: shorten the prompt")

    path = str(min(photos.glob("*.png")))
    with pytest.raises(UserError, match=f"^{path}: long: shorten the prompt"):
        _read(refuse, True, path, None, "long")
