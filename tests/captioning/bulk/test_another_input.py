"""An unfinished run keeps its input; images that are added meanwhile are captioned."""

import json
import os
import shutil
import signal

import pytest

from captioning.bulk.shards import Part


@pytest.fixture
def run_in_part(run, monkeypatch):
    """Return a function that is stopped after some batches of two; see `run`."""

    def call(*given, stop_after=1):
        with monkeypatch.context() as patch:
            add, left = Part.add, iter(range(1, stop_after))

            def stop(self, lines):
                add(self, lines)
                if next(left, None) is None:
                    os.kill(os.getpid(), signal.SIGTERM)

            patch.setattr(Part, "add", stop)
            _, log = run(*given, "--batch_size", "2", "--num_workers", "0")
        assert "stopped by SIGTERM" in log

    return call


@pytest.fixture
def lists(photos, tmp_path):
    """Return a list whose columns and folders differ, and another folder with other photos."""
    other = tmp_path / "other"
    shutil.copytree(photos, other)
    names = sorted(path.name for path in photos.glob("*.png"))
    rows = "".join(f"{one},{two}\n" for one, two in zip(names, reversed(names)))
    (tmp_path / "list.csv").write_text("image,photo\n" + rows)
    return tmp_path / "list.csv"


ROOT, AGAIN = ["--root", "{photos}"], ["--existing", "overwrite"]
OTHERS = [
    ("{photos}", AGAIN, "{other}", AGAIN, "input", "{photos}", "{other}"),
    ("{photos}", [], "{photos}", ["--glob", "*1.png"], "glob", None, "*1.png"),
    ("{photos}", ["--no-recursive"], "{photos}", [], "recursive", False, True),
    ("{list}", ROOT, "{list}", ["--root", "{other}"], "root", "{photos}", "{other}"),
    ("{list}", ROOT, "{list}", [*ROOT, "--column", "photo"], "column", None, "photo"),
    ("{photos}", AGAIN, "{photos}", [*AGAIN, "--glob", "*1.png"], "glob", None, "*1.png"),
]
IMAGES = [  # of the first run of each, and of the second
    ("photos/**/*.png", "other/**/*.png"),
    ("photos/**/*.png", "photos/**/*1.png"),
    ("photos/*.png", "photos/**/*.png"),
    ("photos/*.png", "other/*.png"),
    ("photos/*.png", "photos/*.png"),
    ("photos/**/*.png", "photos/**/*1.png"),
]


@pytest.mark.parametrize(
    ("one", "flags", "two", "others", "name", "was", "now", "images", "more"),
    [(*row, *images) for row, images in zip(OTHERS, IMAGES)],
)
def test_an_unfinished_run_refuses_another_input(
    run, run_in_part, photos, lists, one, flags, two, others, name, was, now, images, more
):
    def found(pattern):
        return {str(path) for path in photos.parent.glob(pattern)}

    def filled(text):
        known = {"photos": photos, "other": photos.parent / "other", "list": lists}
        return text.format(**known) if isinstance(text, str) else text

    first, second = [filled(one), *map(filled, flags)], [filled(two), *map(filled, others)]
    run_in_part(*first)
    _, log = run(*second, code=2)
    assert f"the unfinished run has {name} {filled(was)!r}, this call has {filled(now)!r}: " in log
    lines, _ = run(*first)  # goes on
    assert sorted(line["image"] for line in lines) == sorted(found(images))
    lines, _ = run(*second)
    assert sorted(line["image"] for line in lines) == sorted(found(images) | found(more))


def test_the_files_of_an_unfinished_run_keep_their_format(run_in_part, photos, tmp_path):
    """A later version of the program has to continue them."""
    run_in_part(photos, "--shard_size", "2", "--write-shards", str(tmp_path / "t"), stop_after=2)
    parts = tmp_path / "out" / "captions.jsonl.parts"
    header, done = (json.loads((parts / name).read_text()) for name in ("plan.json", "000000.done"))
    assert sorted(header) == [
        *("before", "entries", "file", "first_shard", "images", "settings", "shard_size")
    ]
    assert sorted(header["settings"]) == [
        *("captions", "checkpoint", "checkpoint_time", "column", "config", "existing", "glob"),
        *("input", "language", "num_return", "precision", "prefix", "recursive", "root", "sidecar"),
        *("suffix", "write_shards"),
    ]
    assert done.keys() == {"images", "failed", "written"}
    (journal,) = parts.glob("*.journal")
    assert json.loads(journal.read_text()).keys() == {"after", "lines"}
    assert (parts / "000000.jsonl").exists()


def test_a_slash_after_a_folder_does_not_matter(run, run_in_part, photos):
    run_in_part(photos)
    lines, _ = run(f"{photos}/")
    assert len(lines) == 10


@pytest.mark.parametrize("where", ["beside", "in a file"])
def test_images_added_with_captions_are_captioned_too(
    run, run_in_part, photos, expected, where, tmp_path
):
    """--existing overwrite applies to them as in an undisturbed run."""

    source, late = min(photos.glob("scene*.png")), photos / "aa.png"
    (photos / "bad.png").write_text("no image")
    if where == "beside":
        source.with_suffix(".txt").write_text("a tag\n")
        flags = ["--sidecar"]
    else:
        rows = "".join(f"{path.name},a tag\n" for path in (source, late, photos / "bad.png"))
        (tmp_path / "tags.csv").write_text(f"image,caption\n{rows}")
        flags = ["--captions", str(tmp_path / "tags.csv")]
    flags += ["--existing", "overwrite"]
    run_in_part(photos, *flags)
    shutil.copy(source, late)
    if where == "beside":
        late.with_suffix(".txt").write_text("a tag\n")
    lines, log = run(photos, *flags)
    after = {line["image"]: line["caption"] for line in lines}
    assert len(lines) == len(after) == 11 and "skipped 0, failed 1" in log
    assert after[str(source)] == after[str(late)] == expected(source)[0][0]
