"""The images of folders and of lists in every format."""

import os
from pathlib import Path

import pytest

from captioning.bulk.request import Request
from captioning.runtime.errors import UserError

ROWS = {
    "a.txt": "one.jpg\n\n within/two.jpg \none.jpg\n",
    "a.csv": "id,image\n7,one.jpg\n8,within/two.jpg\n",
    "a.jsonl": '{"file_name": "one.jpg", "image_id": 7}\n{"image": "within/two.jpg", "id": 8}\n',
    "a.json": '["one.jpg", "within/two.jpg"]',
    "b.json": '[{"image": "one.jpg", "caption": "x"}, {"image": "one.jpg", "caption": "y"}, '
    '{"image": "within/two.jpg", "caption": "z"}]',
    "c.json": '{"images": [{"file_name": "one.jpg", "id": 7}, '
    '{"file_name": "within/two.jpg", "id": 8}]}',
    "d.json": '{"7": "one.jpg", "8": "within/two.jpg"}',
}
IDS = {"a.csv": ["7", "8"], "a.jsonl": [7, 8], "c.json": [7, 8], "d.json": ["7", "8"]}


@pytest.mark.parametrize("name", ROWS)
def test_a_list_names_each_image_once(tmp_path, name):
    (tmp_path / name).write_text(ROWS[name], encoding="utf-8-sig")
    items = list(Request(str(tmp_path / name), tmp_path / "out.jsonl").images())
    assert [item.image for item in items] == [
        str(tmp_path / "one.jpg"),
        str(tmp_path / "within" / "two.jpg"),
    ]
    assert [item.image_id for item in items] == IDS.get(name, [None, None])


def test_root_and_column_say_where_a_list_has_its_images(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('image,photo\nx,"a, b.jpg"\n')
    request = Request(str(path), tmp_path / "out.jsonl", root=Path("/photos"), column="photo")
    assert [item.image for item in request.images()] == ["/photos/a, b.jpg"]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.csv", "name,size\nx,1\n", "line 2 has no image: looked for one of image, path"),
        ("a.csv", 'image\n"x"y\n', "not valid CSV at line 2"),
        ("a.jsonl", '{"image": "x"}\n{"image"\n', "not valid JSON at line 2"),
        ("a.json", '{"x": 1}', "expected a list of images, or"),
        ("a.json", "[[1]]", "row 1 has no image"),
    ],
)
def test_errors_in_a_list_name_the_line(tmp_path, name, text, reason):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=reason):
        list(Request(str(tmp_path / name), tmp_path / "out.jsonl").images())


@pytest.fixture
def tree(tmp_path):
    """Return a folder of files with many kinds of names, and a link to itself."""
    names = ["b.JPG", "a.png", "notes.txt", ".hid.png", "cats/c.webp", "cats/x/d.tiff", ".h/e.png"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "cats" / "again").symlink_to(tmp_path)
    (tmp_path / "folder.png").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, ["a.png", "b.JPG", "cats/c.webp", "cats/x/d.tiff"]),
        ({"recursive": False}, ["a.png", "b.JPG"]),
        ({"glob": "*.t*"}, ["cats/x/d.tiff", "notes.txt"]),
        ({"glob": "cats/*"}, ["cats/c.webp", "cats/x/d.tiff"]),
    ],
)
def test_a_folder_has_the_photos_that_the_settings_choose(tree, settings, names):
    request = Request(str(tree), tree / "out.jsonl", **settings)
    found = [os.path.relpath(item.image, tree) for item in request.images()]
    assert found == names
