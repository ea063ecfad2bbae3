"""An unfinished run keeps its input; images that are added meanwhile are captioned."""

import json
import shutil

import pytest

from tests.captioning.bulk.conftest import killed_after


@pytest.fixture
def run_in_part(run):
    """Return a function that is stopped after some batches of two; see `run`."""

    def call(*given, stop_after=1):
        with killed_after(stop_after):
            _, log = run(*given, "--batch_size", "2", "--num_workers", "0")
        assert "stopped by SIGTERM" in log

    return call


def test_an_unfinished_run_refuses_another_input(
    run, run_in_part, photos, itm_checkpoint, tmp_path
):
    """As it does other settings, whose names the next test has."""
    other = shutil.copytree(photos, tmp_path / "other")
    run_in_part(photos)
    filtered = ["--filter", "itm>.5", "--itm_model", str(itm_checkpoint)]
    for given, line in (
        ([other], f"input {str(photos)!r}, this call has {str(other)!r}: "),
        ([photos, "--glob", "*1.png"], "glob None, this call has '*1.png': "),
        ([photos, "--num_beams", "1"], "num_beams None, this call has 1"),
        ([photos, *filtered], "filter None, this call has 'itm>0.5'"),
    ):
        assert f"the unfinished run has {line}" in run(*given, code=2)[1]
    images = sorted(map(str, photos.rglob("*.png")))
    lines, _ = run(f"{photos}/")  # goes on; the slash does not matter
    assert sorted(line["image"] for line in lines) == images
    lines, _ = run(other)
    assert sorted(line["image"] for line in lines) == sorted(
        [*map(str, other.rglob("*.png")), *images]
    )


def test_the_files_of_an_unfinished_run_keep_their_format(run_in_part, photos, tmp_path):
    """A later version of the program has to continue them."""
    run_in_part(photos, "--shard_size", "2", "--write-shards", str(tmp_path / "t"), stop_after=2)
    parts = tmp_path / "out" / "captions.jsonl.parts"
    header, done = (json.loads((parts / name).read_text()) for name in ("plan.json", "000000.done"))
    assert " ".join(sorted(header)) == (
        "before entries file first_shard images settings shard_size"
    )
    assert " ".join(sorted(header["settings"])) == (
        "captions checkpoint checkpoint_time column config existing glob input language num_return "
        "precision prefix recursive root sidecar suffix write_shards"
    )
    assert done.keys() == {"images", "failed", "written"}
    (journal,) = parts.glob("*.journal")
    assert json.loads(journal.read_text()).keys() == {"after", "lines"}
    assert (parts / "000000.jsonl").exists()


def test_images_added_with_captions_are_captioned_too(run, run_in_part, photos, expected):
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
    assert len(lines) == len(after) == 11 and "skipped 0, failed 1" in log
    assert after[str(source)] == after[str(late)] == expected(source)[0][0]
