"""A folder of tars belongs to one run, and keeps no tar of an abandoned run."""

import json
import os
import shutil
import signal
import tarfile

import pytest

from captioning.files import stores, uploads
from tests.captioning.bulk.conftest import killed_at, read_lines
from tests.programs import one_error_line

pytestmark = pytest.mark.slow


def killed_at_upload(name):
    """Return a hook that kills the process (-9) before a file of that name is uploaded."""

    def hook(rank):
        original = uploads.upload

        def upload(path, address):
            if address.endswith(name):
                os.kill(os.getpid(), signal.SIGKILL)
            return original(path, address)

        uploads.upload = upload

    return hook


@pytest.fixture
def given(given):
    """Return a function that makes the arguments of a run of ten photos, with tars of two."""

    def arguments(out, *flags, tars=None):
        tars = ["--write-shards", tars] if tars else []
        return given("--shard_size", 2, "--num_workers", 0, *flags, *tars, out=out)

    return arguments


def tars(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.tar"))}


def lines_in(folder):
    """Return the caption lines in the tars of a folder."""
    lines = []
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as tar:
            lines += [json.load(tar.extractfile(m)) for m in tar if m.name.endswith(".json")]
    return lines


def test_another_run_is_refused_in_the_folder_of_a_killed_one(call, tmp_path):
    a, b, folder = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "tars"
    call(tmp_path / "whole.jsonl", tars=tmp_path / "whole")
    call(a, tars=folder, hook=killed_at("/00004.tar"))
    before = tars(folder)
    assert list(before) == [f"0000{n}.tar" for n in range(4)]
    assert call(b, tars=folder, code=2).splitlines() == [
        f"error: --write-shards: {folder} has the tars of {a}: choose another folder for "
        f"{b}; remove {folder}/owner.json only if that run is obsolete"
    ]
    assert tars(folder) == before and not b.exists()
    call(b, tars=tmp_path / "others")
    call(a, tars=folder)
    assert tars(folder) == tars(tmp_path / "whole") and len(tars(folder)) == 5
    assert not list(folder.glob(".*"))
    log = call(b, "--existing", "overwrite", tars=folder, code=2)  # nor afterwards
    assert f"has the tars of {a}" in log


def test_of_two_runs_at_once_one_is_refused(start, tmp_path):
    folder = tmp_path / "tars"
    outs = [tmp_path / f"{name}.jsonl" for name in "ab"]
    both = [start(out, tars=folder) for out in outs]
    codes = [process.wait()[0] for process in both]
    assert sorted(codes) == [0, 2], [process.said() for process in both]
    winner = outs[codes.index(0)]
    lines = lines_in(folder)
    assert lines == read_lines(winner) and len(lines) == 10
    assert not outs[codes.index(2)].exists()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_restart_removes_the_abandoned_tars(call, tmp_path, elsewhere):
    out, folder = tmp_path / "a.jsonl", tmp_path / "tars"
    call(out, tars=folder, hook=killed_at("/00004.tar"))
    new = tmp_path / "other" if elsewhere else folder
    call(out, "--num_beams", "1", "--shard_size", "5", "--restart", tars=new)
    assert list(tars(new)) == ["00000.tar", "00001.tar"]
    lines = lines_in(new)
    assert lines == read_lines(out)
    assert {line["settings"]["num_beams"] for line in lines} == {1}
    if elsewhere:
        assert not list(folder.iterdir())
        call(tmp_path / "b.jsonl", tars=folder)


def test_restart_without_tars_keeps_only_finished_ones(call, photos, tmp_path):
    out, flags = tmp_path / "a.jsonl", ["--write-shards", tmp_path / "tars"]
    call(out, *flags, hook=killed_at("/00004.tar"))
    call(out, "--restart")
    assert not list((tmp_path / "tars").iterdir())
    again = [*flags, "--existing", "overwrite"]
    call(out, *again)
    before = tars(tmp_path / "tars")
    call(out, *again, hook=killed_at("/00007.tar"))
    call(out, "--restart")
    assert tars(tmp_path / "tars") == before and len(before) == 5
    assert f"has the tars of {out}" in call(tmp_path / "b.jsonl", *flags, code=2)


def test_verify_reports_missing_changed_and_foreign_tars(call, photos, tmp_path):
    out, folder = tmp_path / "a.jsonl", tmp_path / "tars"
    flags = ["--write-shards", folder]
    call(out, *flags)
    shutil.copy(min(photos.glob("*.png")), photos / "zz.png")
    call(out, *flags)  # one that came later
    log = call(out, *flags, "--verify")
    assert len(tars(folder)) == 6 and "not of this run" not in log
    shutil.copy(folder / "00000.tar", folder / "00009.tar")
    log = call(out, *flags, "--verify")
    assert f"{folder} has 1 tars that are not of this run: 00009.tar" in log
    content = (folder / "00002.tar").read_bytes()
    (folder / "00002.tar").write_bytes(content.replace(b'"caption"', b'"captiom"'))
    (folder / "00004.tar").unlink()
    line = f"error: {folder}: 2 tars are missing or were changed, the first is 00002.tar: "
    one_error_line(call(out, *flags, "--verify", code=2), line)


def test_a_run_that_wrote_nothing_owns_nothing(call, tmp_path):
    folder = tmp_path / "tars"
    log = call(tmp_path / "a.jsonl", "--num_return", "9", tars=folder, code=2)
    assert "num_return is 9" in log and not list(folder.iterdir())
    (folder / "owner.json").touch()  # as a kill may leave it
    call(tmp_path / "b.jsonl", tars=folder)
    (folder / "owner.json").write_text("[]\n")
    line = f"error: {folder}/owner.json is damaged: remove it if"
    one_error_line(call(tmp_path / "b.jsonl", tars=folder, code=2), line)


def test_a_folder_in_a_store_is_one_runs(s3, call, tmp_path, monkeypatch):
    folder, a, b = "s3://bucket/tars", "s3://bucket/a.jsonl", tmp_path / "b.jsonl"
    hook = killed_at_upload("/00004.tar")
    call(a, tars=folder, hook=hook)
    before = stores.stamps(folder)
    assert len(before) == 5
    assert f"{folder} has the tars of {a}: choose another folder" in call(b, tars=folder, code=2)
    assert stores.stamps(folder) == before
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))  # machine
    call(a, tars=folder, hook=hook)
    assert stores.stamps(folder).keys() == before.keys()
    flags = ["--num_beams", "1", "--shard_size", "5", "--restart", "--write-shards", folder]
    call(a, *flags)
    assert sorted(stores.stamps(folder)) == ["00000.tar", "00001.tar", "README.md", "owner.json"]
    call(a, *flags[:2], "--verify", tars=folder)
    uploads.put(stores.read_bytes(f"{folder}/00000.tar")[:-512], f"{folder}/00000.tar")
    assert "1 tars are missing or were changed" in call(
        a, *flags[:2], "--verify", tars=folder, code=2
    )


def test_restart_keeps_tars_whose_captions_are_written(call, photos, tmp_path):
    out, flags = tmp_path / "a.jsonl", ["--write-shards", tmp_path / "tars"]
    # The captions are written, the marker is not.
    call(out, *flags, hook=killed_at(".done"))  # of the first shard
    call(out, *flags, hook=killed_at("a.jsonl.done"))
    assert len(out.read_text().splitlines()) == 10
    before = tars(tmp_path / "tars")
    call(out, *flags, "--num_beams", "1", "--restart")
    assert tars(tmp_path / "tars") == before and len(before) == 5
