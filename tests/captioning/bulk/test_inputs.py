"""Which images a call captions: folders, lists of every format, several inputs."""

import os

import pytest

from captioning.bulk.inputs import Inputs
from captioning.bulk.outputs import Earlier
from captioning.caption import parse_arguments
from captioning.runtime.errors import UserError

ROWS = {
    "a.txt": "one.jpg\n\n within/two.jpg \n./one.jpg\n",
    "A.CSV": "id,image\n7,one.jpg\n8,within/two.jpg\n",
    "a.tsv": "id\timage_path\n7\tone.jpg\n8\twithin/two.jpg\n",
    "a.jsonl": '{"file_name": "one.jpg", "image_id": 7}\n{"image": "within//two.jpg", "id": 8}\n',
    "a.json": '["one.jpg", "within/two.jpg"]',
    "b.json": '[{"image": "one.jpg", "caption": "x"}, {"image": "one.jpg", "caption": "y"}, '
    '{"image": "within/two.jpg", "caption": "z"}]',
    "c.json": '{"images": [{"file_name": "one.jpg", "id": 7}, '
    '{"file_name": "within/two.jpg", "id": 8}]}',
    "d.json": '{"7": "one.jpg", "8": "within/two.jpg"}',
}
IDS = {"A.CSV": [7, 8], "a.tsv": [7, 8], "a.jsonl": [7, 8], "c.json": [7, 8], "d.json": ["7", "8"]}


def entries(*sources_and_flags):
    """Return the entries of a call that has no earlier one, and the files that it left out."""
    words = ["run", "--out", "out.jsonl", *map(str, sources_and_flags)]
    inputs = Inputs(parse_arguments(words), Earlier())
    return [entry for unit in inputs.units() for entry in unit["images"]], inputs.left_out


def test_a_folder_may_have_the_name_of_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~").mkdir()
    (tmp_path / "~" / "one.jpg").touch()
    for source in ("~", "."):
        assert [entry["image"] for entry in entries(source)[0]] == ["~/one.jpg"]


@pytest.mark.parametrize("name", ROWS)
def test_a_list_names_each_image_once(tmp_path, name):
    (tmp_path / name).write_text(ROWS[name], encoding="utf-8-sig")
    found, _ = entries(tmp_path / name)
    assert [entry["image"] for entry in found] == [
        str(tmp_path / "one.jpg"),
        str(tmp_path / "within" / "two.jpg"),
    ]
    assert [entry.get("image_id") for entry in found] == IDS.get(name, [None, None])


def test_root_and_column_say_where_a_list_has_its_images(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('image,photo\nx,"a, b.jpg"\n')
    found, _ = entries(path, "--root", "/photos", "--column", "photo")
    assert [entry["image"] for entry in found] == ["/photos/a, b.jpg"]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.csv", "name,size\nx,1\n", "line 2 has no image: expected text in a column image, file"),
        ("a.csv", 'image\n"x"y\n', "not valid CSV at line 2"),
        ("a.jsonl", '{"image": "x"}\n{"image"\n', "not valid JSON at line 2"),
        ("a.json", "[[1]]", "row 1 is not an object"),
        ("a.csv", "image,prompt\nx,a\n./x,b\n", "x has two ids or prompts: give an image one"),
    ],
)
def test_errors_in_a_list_name_the_line(tmp_path, name, text, reason):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=reason):
        entries(tmp_path / name)


@pytest.fixture
def tree(tmp_path):
    """Return a folder of files with many kinds of names, and with a link to a folder."""
    names = ["b.JPG", "a.png", "notes.txt", ".hid.png", "cats/c.webp", "cats/x/d.tiff", ".h/e.png"]
    for name in [*names, "f.xcf", "g.xcf"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "cats" / "x").rename(tmp_path / ".x")
    (tmp_path / "cats" / "x").symlink_to(tmp_path / ".x")
    (tmp_path / "folder.png").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("flags", "names", "left_out"),
    [
        ([], ["a.png", "b.JPG", "cats/c.webp", "cats/x/d.tiff"], {".xcf": 2, ".txt": 1}),
        (["--no-recursive"], ["a.png", "b.JPG"], {".xcf": 2, ".txt": 1}),
        (["--glob", "*.t*"], ["cats/x/d.tiff", "notes.txt"], None),
        (["--glob", "cats/*"], ["cats/c.webp", "cats/x/d.tiff"], None),
        (["--glob", "*.jpg"], [], None),
    ],
)
def test_a_folder_has_the_photos_that_the_flags_choose(tree, flags, names, left_out):
    if not names:
        with pytest.raises(UserError, match="found no images"):
            entries(tree, *flags)
        return
    found, counted = entries(tree, *flags)
    assert [os.path.relpath(entry["image"], tree) for entry in found] == names
    assert left_out is None or counted == left_out


def test_kinds_of_files_that_are_left_out_are_counted(run, photos):
    for name in ("a.XCF", "b.XCF", "c.cr2"):
        (photos / name).touch()
    assert "left out, not taken for images: 2 .XCF, 1 .cr2" in run(photos)[1]
    (photos / "d.PNG").write_bytes(min(photos.glob("*.png")).read_bytes())
    assert "1 .PNG, 2 .XCF, 1 .cr2" in run(photos, "--glob", "*.png")[1]


def test_several_inputs_are_captioned_in_their_order(run, photos, tmp_path):
    """As those that a shell makes of photos/*.png, mixed with a list and a folder."""
    paths = sorted(photos.glob("*.png"))
    (tmp_path / "list.txt").write_text(f"{paths[0]}\n{paths[4]}\n")
    lines, _ = run(paths[3], paths[1], tmp_path / "list.txt", photos / "within")
    within = next((photos / "within").iterdir())
    wanted = [paths[3], paths[1], paths[0], paths[4], within]
    assert [line["image"] for line in lines] == list(map(str, wanted))
