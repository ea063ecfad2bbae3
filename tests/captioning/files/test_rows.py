"""Rows of every kind of file: one table of columns, suffixes in any case, errors with lines."""

import json
import tracemalloc

import pytest

from captioning.files import rows
from captioning.files.columns import COLUMNS, normal_name, prompt_of, row_of
from captioning.runtime.errors import UserError
from tests.programs import raises_line

NAMES = ["one.jpg", "in/two.jpg"]
LISTS = {  # of NAMES; {file: (content, ids)}
    "a.txt": ("./one.jpg\n\n in//two.jpg \n", [None, None]),
    "b.csv": ("id , image_path\r\n7 , one.jpg \r\n007,in/./two.jpg\r\n", [7, "007"]),
    "c.TSV": ("path\timage_id\none.jpg\t7\nin/two.jpg\t\n", [7, None]),
    "d.NDJSON": ('"one.jpg"\n{"file": "in/two.jpg", "id": "b"}\n', [None, "b"]),
    "f.json": ('["x/../one.jpg", {"filepath": "in/two.jpg", "image_id": "7"}]', [None, "7"]),
    "g.json": (
        '{"images": [{"file_name": "one.jpg", "id": 7}, {"path": "in/two.jpg"}]}',
        [7, None],
    ),
    "h.json": ('{"7": "one.jpg", "8": "in/two.jpg"}', ["7", "8"]),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_gives_the_one_name_of_each_image_and_its_id(tmp_path, name):
    content, ids = LISTS[name]
    (tmp_path / name).write_text(content, encoding="utf-8-sig")
    found = list(rows.read(tmp_path / name, needs=["image"]))
    assert [row["image"] for row in found] == NAMES
    assert [row.get("image_id") for row in found] == ids


def test_names_of_lists_have_a_suffix_in_any_case():
    assert all(map(rows.is_list, ["a.tsv", "T.CSV", "s3://bucket/a.Token", "data/*.PARQUET"]))
    assert not any(map(rows.is_list, ["a.png", "a.TIFF", "a.tar", "."]))


def test_a_list_is_read_row_by_row(tmp_path):
    lines = "".join(f"{number:060d}.jpg\n" for number in range(10_000))  # 650 kB
    (tmp_path / "a.csv").write_text(f"image\n{lines}")
    tracemalloc.start()
    assert sum(1 for _ in rows.read(tmp_path / "a.csv")) == 10_000
    assert tracemalloc.get_traced_memory()[1] < 300_000
    tracemalloc.stop()


@pytest.mark.parametrize("key", COLUMNS)
def test_each_name_of_a_column_counts_in_any_case_and_other_columns_stay(tmp_path, key):
    for name in (*COLUMNS[key], COLUMNS[key][0].upper()):
        (tmp_path / "a.jsonl").write_text(json.dumps({name: "./7", "colour": ["red"]}))
        (row,) = rows.read(tmp_path / "a.jsonl", needs=[key])
        assert row["colour"] == ["red"]
        assert row[key] == {"image": "7", "image_id": "./7"}.get(key, ["./7"])
    assert row_of({"image": 5, "path": "a.jpg", "x": "b.jpg"}, "")["image"] == "a.jpg"
    assert row_of({"Image": "a.jpg", "image": "b.jpg"}, "")["image"] == "b.jpg"


IN_QUOTES = [["image", "caption"], ["a.jpg", '"red, green; blue"']]
CAPTIONS = [  # of one image
    *(
        (suffix, "\r\n".join(map(delimiter.join, IN_QUOTES)), ["red, green; blue"])
        for delimiter in (",", ", ", ";", "\t")
        for suffix in ("csv", "txt")
    ),
    ("csv", 'image,caption\na.jpg,"red, green\nand blue"\n', ["red, green\nand blue"]),
    ("csv", "image,captions\na.jpg,[sic] a dog\n", ["[sic] a dog"]),
    ("txt", 'File_Name,Captions\na.jpg,"[""a dog"", ""b""]"\n', ["a dog", "b"]),
    ("jsonl", '{"image": "a.jpg", "caption": "o\u2028e"}\n', ["o\u2028e"]),
]


@pytest.mark.parametrize(("suffix", "content", "captions"), CAPTIONS)
def test_captions_are_kept_with_delimiters_and_line_ends(tmp_path, suffix, content, captions):
    (tmp_path / f"a.{suffix}").write_bytes(content.encode("utf-8-sig"))
    (row,) = rows.read(tmp_path / f"a.{suffix}")
    assert (row["image"], row["captions"]) == ("a.jpg", captions)


def conversations(*turns):
    """Yield the same turns as LLaVA's data and as messages, whose content is a text or parts."""
    turns = list(zip(("user", "assistant") * 2, turns))
    names = {"user": "human", "assistant": "gpt"}
    yield {"conversations": [{"from": names[role], "value": turn} for role, turn in turns]}
    yield {"messages": [{"role": role, "content": turn} for role, turn in turns]}
    image, text = {"type": "image"}, {"type": "text"}
    contents = [[image, {**text, "text": turn.replace("<image>", "")}] for _, turn in turns]
    yield {"messages": [{"role": r, "content": c} for (r, _), c in zip(turns, contents)]}


@pytest.mark.parametrize("kind", range(3), ids=["conversations", "messages", "parts"])
def test_a_conversation_is_a_prompt_and_a_caption(kind):
    def read(*turns, **image):
        return row_of({**[*conversations(*turns)][kind], **image}, "a.jsonl: line 2")

    for image in ({"image": "a.jpg"}, {"images": ["a.jpg"]}):
        row = read("<image>\nWhat is it?", "A disc.", **image)
        assert (row["image"], row["captions"]) == ("a.jpg", ["A disc."])
        assert prompt_of(row) == "What is it?"
    assert prompt_of(read("<image>", "A disc.")) is None and "captions" not in read("What?")
    name = "messages" if kind else "conversations"
    line = f"a.jsonl: line 2: {name} is not one turn of the user and one of the assistant: keep "
    with raises_line(UserError, start=line):
        read("What is it?", "A disc.", "And that?", "A ring.")
    with raises_line(UserError, "a.jsonl: line 2 has 2 images: keep one"):
        read("What is it?", "A disc.", images=["a.jpg", "b.jpg"])


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


NO_IMAGE = (
    "line 2 has no image: expected text in a column image, file_name, path, filename, filepath, "
    "image_path, image_name, file (found 'Photo', 'Caption')"
)
BAD = [
    ("a.csv", "Photo,Caption\nx,1\n", NO_IMAGE),
    ("a.csv", 'image,id\nx,"1\ny,2\n', "not valid CSV at line 3: unexpected end of data"),
    ("a.TXT", "image,caption\nx.jpg,a dog, asleep\n", "line 2 has more values than line 1: put"),
    ("a.token", "x.jpg#0\ta\nx.jpg#1 a\n", "line 2 is neither NAME#NUMBER, a tab and a caption"),
    ("a.jsonl", '{"image": "x"}\n\n{"image"\n', "not valid JSON at line 3"),
    ("a.jsonl", '["x"]', "line 1 is not an object"),
    ("a.json", "[" * 100_000, "not valid JSON: it is nested too deeply"),
    ("a.json", '{"images": [5], "annotations": 5}', "row 1 of images is not an object"),
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


def test_columns_of_a_prompt_are_filled_in_and_other_braces_stay():
    row = row_of({"image": "a.jpg", "prompt": " the ", "place": "Rome"}, "a.csv: line 2")
    assert prompt_of(row) == "the"
    assert prompt_of(row, "In {place}: {prompt} {{x}}") == "In Rome:  the  {{x}}"
    assert prompt_of(row, "for all") is prompt_of(row, 'Answer as {"caption": "..."}') is None
    with raises_line(UserError, "a.csv: line 2 has no column 'x' of --prompt, only image, prompt"):
        prompt_of(row, "{x}")
    with raises_line(UserError, "a: line 1 has the prompt 3: expected text"):
        prompt_of(row_of({"prompt": 3}, "a: line 1"))
