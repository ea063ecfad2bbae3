"""Which images a call captions: folders, lists of every format, several inputs."""

import os
import re

import pytest

from captioning.bulk.inputs import Inputs
from captioning.bulk.outputs import Earlier
from captioning.caption import build_parser, parse_arguments
from captioning.runtime.errors import UserError


def entries(*sources_and_flags):
    words = ["run", "--out", "out.jsonl", *map(str, sources_and_flags)]
    inputs = Inputs(parse_arguments(words), Earlier({}, {}, {}))
    return [entry for unit in inputs.units() for entry in unit["images"]]


def test_a_list_names_images_once_of_its_folder_or_of_root(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,path\n7,one.jpg\n8,within/two.jpg\n7,./one.jpg\n")
    for root, flags in ((tmp_path, []), ("/photos", ["--root", "/photos"])):
        first, second = entries(path, *flags)
        assert first == {"image": f"{root}/one.jpg", "image_id": 7}
        assert second == {"image": f"{root}/within/two.jpg", "image_id": 8}
    path.write_text("path,prompt\nx,a\n./x,b\n")
    with pytest.raises(UserError, match="x has two ids or prompts: give an image one"):
        entries(path)


def test_a_folder_has_the_photos_that_the_flags_choose(tmp_path):
    names = ["b.JPG", "a.png", "notes.txt", ".hid.png", "cats/c.webp", "cats/x/d.tiff", ".h/e.png"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "cats" / "x").rename(tmp_path / ".x")
    (tmp_path / "cats" / "x").symlink_to(tmp_path / ".x")
    (tmp_path / "folder.png").mkdir()
    for flags, names in (
        ([], ["a.png", "b.JPG", "cats/c.webp", "cats/x/d.tiff"]),
        (["--no-recursive"], ["a.png", "b.JPG"]),
        (["--glob", "*.t*"], ["cats/x/d.tiff", "notes.txt"]),
        (["--glob", "cats/*"], ["cats/c.webp", "cats/x/d.tiff"]),
    ):
        found = [os.path.relpath(entry["image"], tmp_path) for entry in entries(tmp_path, *flags)]
        assert found == names


def test_kinds_of_files_that_are_left_out_are_counted(run, photos):
    for name in ("a.XCF", "b.XCF", "c.cr2"):
        (photos / name).touch()
    assert "left out, not taken for images: 2 .XCF, 1 .cr2" in run(photos)[1]
    (photos / "d.PNG").write_bytes(min(photos.glob("*.png")).read_bytes())
    assert "1 .PNG, 2 .XCF, 1 .cr2" in run(photos, "--glob", "*.png")[1]


def test_inputs_are_captioned_in_their_order_and_names_of_one_photo_once(
    run, photos, tmp_path, monkeypatch
):
    """As those that a shell makes of photos/*.png, mixed with a list and a folder."""
    monkeypatch.chdir(tmp_path)
    paths = [str(path.relative_to(tmp_path)) for path in sorted(photos.rglob("*.png"))]
    (tmp_path / "list.txt").write_text(f"{paths[0]}\n{photos}/{paths[3][7:]}\n")
    some, _ = run(paths[3], f"./{paths[1]}", "list.txt", folder="some")
    assert [line["image"] for line in some] == [paths[3], paths[1], paths[0]]
    names = ["photos", "./photos/", str(photos), "photos/within/../within"]
    lines, _ = run(*names)
    assert [line["image"] for line in lines] == paths
    for name in names:
        again, log = run(name)
        assert again == lines and "done 0" in log
    monkeypatch.chdir(photos)
    here, _ = run(".", folder="here")
    assert [f"photos/{line['image']}" for line in here] == paths


def test_the_page_names_flags_that_exist(repository):
    page = (repository / "docs" / "captioning.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(--[\w-]+)", page))
    actions = build_parser()._actions
    assert all(action.help for action in actions)
    flags = {flag for action in actions for flag in action.option_strings}
    assert len(named) > 10 and named <= flags
