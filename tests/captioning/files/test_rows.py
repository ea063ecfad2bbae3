"""Rows of every kind of file: one table of columns, suffixes in any case, errors with lines."""

import itertools
import json
import tracemalloc

import pytest

from captioning.files import rows
from captioning.files.columns import COLUMNS, normal_name, prompt_of, row_of
from captioning.runtime.errors import UserError
from tests.captioning.data.caption_formats import FILES, flat
from tests.programs import raises_line

CAPTIONS = {
    "1000268201_693b08cb0e.jpg": ["A child , in a pink dress .", 'A girl says "hi"'],
    "1001773457_577c3a7d05.jpg": ["4 dogs | a cat", "Ein Hund läuft 🐕", "two dogs"],
}


@pytest.mark.parametrize("change", [str, str.upper], ids=["as it is", "in capitals"])
@pytest.mark.parametrize("name", FILES)
def test_captions_of_each_format_are_those_that_were_written(tmp_path, name, change):
    path = tmp_path / f"a{change(name[name.rindex('.') :])}"
    path.write_bytes(FILES[name](CAPTIONS).replace("\n", "\r\n").encode("utf-8-sig"))
    found = [(row["image"], text) for row in rows.read(path) for text in row["captions"]]
    assert found == [(image, text) for image, _, text in flat(CAPTIONS)]
    assert rows.is_list(path)


NAMES = ["one.jpg", "in/two.jpg"]
LISTS = {  # of NAMES; {file: (content, ids)}
    "a.txt": ("./one.jpg\n\n in//two.jpg \n", [None, None]),
    "b.csv": ("id , image_path\r\n7 , one.jpg \r\n007,in/./two.jpg\r\n", [7, "007"]),
    "c.tsv": ("path\timage_id\none.jpg\t7\nin/two.jpg\t\n", [7, None]),
    "d.jsonl": ('{"image": "x/../one.jpg", "imgid": 7}\n{"file": "in/two.jpg"}\n', [7, None]),
    "d.NDJSON": ('"one.jpg"\n{"file": "in/two.jpg", "id": "b"}\n', [None, "b"]),
    "e.json": ('["one.jpg", "in/two.jpg"]', [None, None]),
    "f.json": ('[{"image": "one.jpg", "image_id": "7"}, {"filepath": "in/two.jpg"}]', ["7", None]),
    "g.json": ('{"images": [{"file_name": "one.jpg", "id": 7}, {"file_name": "in/two.jpg"}]}', 0),
    "h.json": ('{"7": "one.jpg", "8": "in/two.jpg"}', ["7", "8"]),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_gives_the_one_name_of_each_image_and_its_id(tmp_path, name):
    content, ids = LISTS[name]
    (tmp_path / name).write_text(content, encoding="utf-8-sig")
    found = list(rows.read(tmp_path / name, needs=["image"]))
    assert [row["image"] for row in found] == NAMES
    assert [row.get("image_id") for row in found] == (ids or [7, None])


@pytest.mark.parametrize("key", COLUMNS)
def test_each_name_of_a_column_counts_and_other_columns_stay(tmp_path, key):
    for name in COLUMNS[key]:
        (tmp_path / "a.jsonl").write_text(json.dumps({name: "./7", "colour": ["red"]}))
        (row,) = rows.read(tmp_path / "a.jsonl", needs=[key])
        assert row["colour"] == ["red"]
        assert row[key] == {"image": "7", "image_id": "./7"}.get(key, ["./7"])
    (row,) = rows.read(tmp_path / "a.jsonl", column="colour")
    assert "image" not in row  # a list is no name
    assert row_of({"image": 5, "path": "a.jpg", "x": "b.jpg"}, "")["image"] == "a.jpg"
    assert row_of({"image": "a.jpg", "x": "b.jpg"}, "", column="x")["image"] == "b.jpg"


def said(*turns):
    """The same turns as LLaVA's data and as messages, whose content is a text or its parts."""
    turns = [(role, turn) for role, turn in zip(("user", "assistant") * 2, turns)]
    names = {"user": "human", "assistant": "gpt"}
    yield {"conversations": [{"from": names[role], "value": turn} for role, turn in turns]}
    yield {"messages": [{"role": role, "content": turn} for role, turn in turns]}
    parts = [{"type": "image"}, {"type": "text"}]
    contents = [[parts[0], {**parts[1], "text": turn.replace("<image>", "")}] for _, turn in turns]
    yield {"messages": [{"role": r, "content": c} for (r, _), c in zip(turns, contents)]}


@pytest.mark.parametrize("image", [{"image": "a.jpg"}, {"images": ["a.jpg"]}], ids=str)
@pytest.mark.parametrize("kind", range(3), ids=["conversations", "messages", "parts"])
def test_a_conversation_is_a_prompt_and_a_caption(tmp_path, kind, image):
    path = tmp_path / "a.jsonl"

    def read(*turns):
        path.write_text("{}\n" + json.dumps({**[*said(*turns)][kind], **image}))
        return [*rows.read(path)][1]

    row = read("<image>\nWhat is it?", "A disc.")
    assert (row["image"], row["captions"], prompt_of(row)) == ("a.jpg", ["A disc."], "What is it?")
    assert prompt_of(read("<image>", "A disc.")) is None and "captions" not in read("What?")
    name = "conversations" if kind == 0 else "messages"
    line = f"{path}: line 2: {name} is not one turn of the user and one of the assistant: keep one "
    with raises_line(UserError, start=line):
        read("What is it?", "A disc.", "And that?", "A ring.")
    image = {"images": ["a.jpg", "b.jpg"]}
    with raises_line(UserError, f"{path}: line 2 has 2 images: keep one"):
        read("What is it?", "A disc.")


NORMAL = {
    "./p1.png": "p1.png",
    "a//b/../p1.png": "a/p1.png",
    "../photos/": "../photos",
    "/data/./photos/": "/data/photos",
    "s3://bucket//a/./b/": "s3://bucket/a/b",
    "https://host/a/../b.png": "https://host/a/../b.png",  # a server may mean another file
}


def test_a_file_has_one_name(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert {name: normal_name(name) for name in NORMAL} == NORMAL
    in_rows = {**NORMAL, "~/a.png": "/home/me/a.png"}  # the shell and the parser expand arguments
    assert {name: row_of(name, "")["image"] for name in in_rows} == in_rows


def test_line_ends_within_texts_are_kept(tmp_path):
    (tmp_path / "a.csv").write_text('image,caption\na.jpg,"red, green\nand blue"\n')
    (tmp_path / "b.jsonl").write_text('{"image": "a.jpg", "caption": "o\u2028e"}\n', "utf-8")
    (tmp_path / "c.csv").write_text("image,captions\na.jpg,[sic] a dog\n")
    expected = {"a.csv": ["red, green\nand blue"], "b.jsonl": ["o\u2028e"]}
    expected["c.csv"] = ["[sic] a dog"]
    for name, captions in expected.items():
        (row,) = rows.read(tmp_path / name)
        assert row["captions"] == captions


@pytest.mark.parametrize("suffix", ["csv", "txt"])
@pytest.mark.parametrize("delimiter", [",", ", ", ";", "\t"])
def test_a_table_has_the_delimiter_of_its_header(tmp_path, delimiter, suffix):
    lines = [["image", "caption"], ["a.jpg", '"red, green; blue"'], ["b.jpg", "a dog"]]
    text = "\ufeff" + "\r\n".join(map(delimiter.join, lines))
    (tmp_path / f"a.{suffix}").write_text(text, "utf-8")
    first, second = rows.read(tmp_path / f"a.{suffix}")
    assert first["captions"] == ["red, green; blue"] and first["image"] == "a.jpg"
    assert second["captions"] == ["a dog"] and second["image"] == "b.jpg"


def test_columns_have_names_in_any_case(tmp_path):
    (tmp_path / "a.txt").write_text('File_Name,Captions,ID\na.jpg,"[""a dog"", ""b""]",42\n')
    (row,) = rows.read(tmp_path / "a.txt", needs=["image"])
    assert (row["image"], row["captions"], row["image_id"]) == ("a.jpg", ["a dog", "b"], 42)
    assert row_of({"Image": "a.jpg", "image": "b.jpg"}, "")["image"] == "b.jpg"
    assert prompt_of(row, "{ID}") == "42"


NO_IMAGE = (
    "line 2 has no image: expected text in a column image, file_name, path, filename, filepath, "
    "image_path, image_name, file (found 'Photo', 'Caption')"
)
BAD = [
    ("a.csv", "Photo,Caption\nx,1\n", NO_IMAGE),
    ("a.csv", 'image\n"x"y\n', "not valid CSV at line 2"),
    ("a.csv", 'image,id\nx,"1\ny,2\n', "not valid CSV at line 3: unexpected end of data"),
    ("a.TXT", "image,caption\nx.jpg,a dog, asleep\n", "line 2 has more values than line 1: put"),
    ("a.token", "x.jpg#0\ta\nx.jpg#1 a\n", "line 2 is neither NAME#NUMBER, a tab and a caption"),
    ("a.csv", "image_name| \nx.jpg| 0| a\nx.jpg 1 a\n", "line 3 is neither NAME#NUMBER, a tab"),
    ("a.jsonl", '{"image": "x"}\n\n{"image"\n', "not valid JSON at line 3"),
    ("a.jsonl", '["x"]', "line 1 is not an object"),
    ("a.json", " \n\n", "not valid JSON at line 3 (Expecting value): corr"),
    ("a.json", "[" * 100_000, "not valid JSON: it is nested too deeply"),
    ("a.json", '{"x": ["a"]}', "row 1 has no image"),
    ("a.json", "[[1]]", "row 1 is not an object"),
    ("a.json", '{"images": [5], "annotations": 5}', "row 1 of images is not an object"),
    (
        "a.json",
        '{"images": [], "annotations": [{"id": 1.5}]}',
        "row 1 of annotations has no image_i",
    ),
    ("a.json", "3", "not a list of images or captions: expected rows of {image, caption}"),
    ("a.json", '[{"image": "x", "image_id": true}]', "row 1 has image_id True: expected"),
    ("a.json", '{"images": [{"sentences": [1], "filename": "x"}]}', "row 1 of images lacks filen"),
    ("a.txt", b"x.jpg\n\xff.jpg\n", "not UTF-8 text: invalid start byte: convert it"),
    ("a.txt", None, "no such file: put it there, or correct the path"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD)
def test_an_error_is_one_line_that_names_file_and_row(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with raises_line(UserError, start=f"{path}: {message}"):
        list(rows.read(path, needs=["image"]))


def test_a_list_is_read_row_by_row(tmp_path):
    for name, line in (("a.txt", "{}.jpg\n"), ("a.csv", "{}.jpg,x\n"), ("a.jsonl", '"{}.jpg"\n')):
        lines = (line.format(f"{number:060d}") for number in range(10_000))  # 600 kB
        start = ["image,size\n"] if name == "a.csv" else []
        (tmp_path / name).write_text("".join([*start, *lines]))
        tracemalloc.start()
        count = sum(1 for _ in rows.read(tmp_path / name))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == 10_000 and peak < 300_000
    first, second = itertools.islice(rows.read(tmp_path / "a.jsonl"), 2)
    assert (first.where, second.where) == tuple(f"{tmp_path}/a.jsonl: line {n}" for n in (1, 2))


def test_photos_and_folders_are_no_lists(tmp_path):
    (tmp_path / "b.json").mkdir()
    assert not any(map(rows.is_list, ["a.png", "a.TIFF", "a.tar", tmp_path, tmp_path / "b.json"]))
    assert all(map(rows.is_list, ["a.tsv", "T.CSV", "s3://bucket/a.Token", "data/*.PARQUET"]))


def test_columns_of_a_prompt_are_filled_in_and_other_braces_stay():
    row = row_of({"image": "a.jpg", "prompt": " the ", "place": "Rome"}, "a.csv: line 2")
    assert prompt_of(row) == "the"
    assert prompt_of(row, "In {place}: {prompt} {{x}}") == "In Rome:  the  {{x}}"
    assert prompt_of(row, "for all") is prompt_of(row, 'Answer as {"caption": "..."}') is None
    for message, arguments in {
        "a.csv: line 2 has no column 'x' of --prompt, only image, prompt, place": (row, "{x}"),
        "a: line 1 has the prompt 3: expected text": (row_of({"prompt": 3}, "a: line 1"),),
    }.items():
        with raises_line(UserError, start=message):
            prompt_of(*arguments)
