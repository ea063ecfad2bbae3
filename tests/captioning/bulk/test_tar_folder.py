"""A folder of tars belongs to one run, and keeps no tar of an abandoned run."""

import json
import os
import shutil
import signal
import tarfile

import pytest

from captioning.files import stores, uploads
from tests.captioning.bulk.conftest import killed_at, read_lines

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
    """Return a function that makes the arguments of a run of ten photos in tars of two."""
    return lambda out, *flags: given("--shard_size", 2, "--num_workers", 0, *flags, out=out)


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
    assert call(tmp_path / "whole.jsonl", "--write-shards", tmp_path / "whole")[0] == 0
    assert call(a, "--write-shards", folder, hook=killed_at("/00004.tar"))[0] == -signal.SIGKILL
    before = tars(folder)
    assert list(before) == [f"0000{n}.tar" for n in range(4)]
    code, log = call(b, "--write-shards", folder)
    assert code == 2 and log.splitlines() == [
        f"error: --write-shards: {folder} has the tars of {a}: choose another folder for "
        f"{b}; remove {folder}/owner.json only if that run is obsolete"
    ]
    assert tars(folder) == before and not b.exists()
    assert call(b, "--write-shards", tmp_path / "others")[0] == 0
    assert call(a, "--write-shards", folder)[0] == 0
    assert tars(folder) == tars(tmp_path / "whole") and len(tars(folder)) == 5
    assert not list(folder.glob(".*"))
    code, log = call(b, "--existing", "overwrite", "--write-shards", folder)  # nor afterwards
    assert code == 2 and f"has the tars of {a}" in log


def test_of_two_runs_at_once_one_is_refused(start, tmp_path):
    folder = tmp_path / "tars"
    outs = [tmp_path / f"{name}.jsonl" for name in "ab"]
    both = [start(out, "--write-shards", folder) for out in outs]
    codes = [process.wait()[0] for process in both]
    assert sorted(codes) == [0, 2], [process.said() for process in both]
    winner = outs[codes.index(0)]
    lines = lines_in(folder)
    assert lines == read_lines(winner) and len(lines) == 10
    assert not outs[codes.index(2)].exists()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_restart_removes_the_abandoned_tars(call, tmp_path, elsewhere):
    out, folder = tmp_path / "a.jsonl", tmp_path / "tars"
    assert call(out, "--write-shards", folder, hook=killed_at("/00004.tar"))[0] == -signal.SIGKILL
    new = tmp_path / "other" if elsewhere else folder
    flags = ["--num_beams", "1", "--shard_size", "5", "--restart", "--write-shards", new]
    assert call(out, *flags)[0] == 0
    assert list(tars(new)) == ["00000.tar", "00001.tar"]
    lines = lines_in(new)
    assert lines == read_lines(out)
    assert {line["settings"]["num_beams"] for line in lines} == {1}
    if elsewhere:
        assert not list(folder.iterdir())
        assert call(tmp_path / "b.jsonl", "--write-shards", folder)[0] == 0


def test_restart_without_tars_keeps_only_finished_ones(call, photos, tmp_path):
    out, flags = tmp_path / "a.jsonl", ["--write-shards", tmp_path / "tars"]
    assert call(out, *flags, hook=killed_at("/00004.tar"))[0] == -signal.SIGKILL
    assert call(out, "--restart")[0] == 0
    assert not list((tmp_path / "tars").iterdir())
    again = [*flags, "--existing", "overwrite"]
    assert call(out, *again)[0] == 0
    before = tars(tmp_path / "tars")
    assert call(out, *again, hook=killed_at("/00007.tar"))[0] == -signal.SIGKILL
    assert call(out, "--restart")[0] == 0
    assert tars(tmp_path / "tars") == before and len(before) == 5
    code, log = call(tmp_path / "b.jsonl", *flags)
    assert code == 2 and f"has the tars of {out}" in log


def test_verify_reports_missing_changed_and_foreign_tars(call, photos, tmp_path):
    out, folder = tmp_path / "a.jsonl", tmp_path / "tars"
    flags = ["--write-shards", folder]
    assert call(out, *flags)[0] == 0
    shutil.copy(min(photos.glob("*.png")), photos / "zz.png")
    assert call(out, *flags)[0] == 0  # one that came later
    code, log = call(out, *flags, "--verify")
    assert code == 0 and len(tars(folder)) == 6 and "not of this run" not in log
    shutil.copy(folder / "00000.tar", folder / "00009.tar")
    code, log = call(out, *flags, "--verify")
    assert code == 0 and f"{folder} has 1 tars that are not of this run: 00009.tar" in log
    content = (folder / "00002.tar").read_bytes()
    (folder / "00002.tar").write_bytes(content.replace(b'"caption"', b'"captiom"'))
    (folder / "00004.tar").unlink()
    code, log = call(out, *flags, "--verify")
    assert code == 2 and log.splitlines()[-1].startswith(
        f"error: {folder}: 2 tars are missing or were changed, the first is 00002.tar: "
    )


def test_a_run_that_wrote_nothing_owns_nothing(call, tmp_path):
    folder = tmp_path / "tars"
    code, log = call(tmp_path / "a.jsonl", "--num_return", "9", "--write-shards", folder)
    assert code == 2 and "num_return is 9" in log and not list(folder.iterdir())
    (folder / "owner.json").touch()  # as a kill may leave it
    assert call(tmp_path / "b.jsonl", "--write-shards", folder)[0] == 0
    (folder / "owner.json").write_text("[]\n")
    code, log = call(tmp_path / "b.jsonl", "--write-shards", folder)
    assert code == 2 and log.startswith(f"error: {folder}/owner.json is damaged: remove it if")


def test_a_folder_in_a_store_is_one_runs(s3, call, tmp_path, monkeypatch):
    folder, a, b = "s3://bucket/tars", "s3://bucket/a.jsonl", tmp_path / "b.jsonl"
    hook = killed_at_upload("/00004.tar")
    assert call(a, "--write-shards", folder, hook=hook)[0] == -signal.SIGKILL
    before = stores.stamps(folder)
    assert len(before) == 5
    code, log = call(b, "--write-shards", folder)
    assert code == 2 and f"{folder} has the tars of {a}: choose another folder" in log
    assert stores.stamps(folder) == before
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))  # machine
    assert call(a, "--write-shards", folder, hook=hook)[0] == -signal.SIGKILL
    assert stores.stamps(folder).keys() == before.keys()
    flags = ["--num_beams", "1", "--shard_size", "5", "--restart", "--write-shards", folder]
    assert call(a, *flags)[0] == 0
    assert sorted(stores.stamps(folder)) == ["00000.tar", "00001.tar", "README.md", "owner.json"]
    assert call(a, *flags[:2], "--write-shards", folder, "--verify")[0] == 0
    uploads.put(stores.read_bytes(f"{folder}/00000.tar")[:-512], f"{folder}/00000.tar")
    code, log = call(a, *flags[:2], "--write-shards", folder, "--verify")
    assert code == 2 and "1 tars are missing or were changed" in log


def test_restart_keeps_tars_whose_captions_are_written(call, photos, tmp_path):
    out, flags = tmp_path / "a.jsonl", ["--write-shards", tmp_path / "tars"]
    # The captions are written, the marker is not.
    assert call(out, *flags, hook=killed_at(".done"))[0] == -signal.SIGKILL  # of the first shard
    assert call(out, *flags, hook=killed_at("a.jsonl.done"))[0] == -signal.SIGKILL
    assert len(out.read_text().splitlines()) == 10
    before = tars(tmp_path / "tars")
    assert call(out, *flags, "--num_beams", "1", "--restart")[0] == 0
    assert tars(tmp_path / "tars") == before and len(before) == 5
