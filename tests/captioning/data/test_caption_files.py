"""Predictions and references in every format, and how they are matched."""

import json

import pytest

from captioning.data.caption_files import (
    ids_by_name,
    of_images,
    read_predictions,
    read_references,
    with_references,
)
from captioning.runtime.errors import UserError
from tests.captioning.data.caption_formats import coco, karpathy
from tests.programs import raises_line


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a file, as JSON unless it is text, and gives its path."""

    def write_file(content, name="file.json"):
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / name).write_text(text, "utf-8-sig")
        return tmp_path / name

    return write_file


def lines(*objects):
    return "".join(json.dumps(each) + "\n" for each in objects)


OWN = {"image": "a/photo_7.jpg", "caption": "a", "captions": ["a", "c"]}
SCORED = {
    "results.json": [{"image_id": 7, "caption": "a"}, {"image_id": "x", "caption": ""}],
    "captions.jsonl": lines(OWN, {"image_id": "x", "captions": ["", "c"]}),
    "capevalkit.jsonl": lines(
        {"id": 7, "caption": "a", "references": ["r"]}, {"id": "x", "caption": [""]}
    ),
    "captions.CSV": "caption,image_id\na,7\n,x\na,7\n",
    "dict.json": {7: ["a"], "x": [""]},
}


@pytest.mark.parametrize("name", SCORED)
def test_predictions_have_the_ids_of_the_file(write, name):
    found = read_predictions(write(SCORED[name], name))
    assert found == {"7" if name == "dict.json" else 7: "a", "x": ""}


def test_a_folder_of_sidecars_is_predictions(tmp_path):
    for name, text in {"a.png": "a dog\na cat\n", "b_7.png": "a bus\n"}.items():
        (tmp_path / name).touch()
        (tmp_path / name).with_suffix(".txt").write_text(text)
    assert read_predictions(tmp_path) == {"a.png": "a dog", 7: "a bus"}


def test_lines_have_the_ids_that_references_give_their_images(write):
    names = ["111_ab5.jpg", "222_cd5.jpg", "x.jpg"]  # Flickr8k's: 5 is not what they are called
    references = write("image,caption\n" + "".join(f"./{n},a dog\n" for n in names), "captions.txt")
    images = ["data//222_cd5.jpg", "data/x.jpg", "data/more_7.jpg"]
    path = write(lines(*({"image": i, "caption": "a"} for i in images)), "a.jsonl")
    found = read_predictions(path, ids_by_name(references))
    kept, lacking = with_references(found, read_references(references))
    assert list(kept) == ["222_cd5.jpg", "x.jpg"] and lacking == [7]
    path = write(lines({"image": images[0], "caption": "a", "id": 1}), "a.jsonl")
    assert list(read_predictions(path, ids_by_name(references))) == ["222_cd5.jpg"]
    assert list(read_predictions(path)) == [1]


def test_references_give_ids_to_the_names_of_images(write):
    photo = {"filename": "111_ab5.jpg", "imgid": 3, "sentences": [{"raw": "a"}], "split": "test"}
    assert ids_by_name(write({"images": [photo]})) == {"111_ab5.jpg": 3}  # Karpathy's
    assert ids_by_name(write({"heron_42.jpg": ["a"]})) == {"heron_42.jpg": "heron_42.jpg"}
    rows = [{"file_name": "a.jpg", "id": 1}, {"file_name": ["a"], "id": 2}, {"id": 3}]
    captions = [{"image_id": 1, "caption": "a dog"}]
    assert ids_by_name(write({"images": rows, "annotations": captions})) == {"a.jpg": 1}


PAIRS = [(139, "a room"), (285, "a bear"), (139, " "), (139, "a table"), (7, "")]
ROOM, BEAR = ["a room", "a table"], ["a bear"]
PHOTOS = {"x_139.jpg": ROOM, "285.jpg": BEAR}
BLIP = [{"image": f"./{image}", "caption": captions} for image, captions in PHOTOS.items()]
EVALKIT = [{"id": 139, "caption": "x", "references": ROOM}, {"id": 285, "references": BEAR}]
REFERENCES = {
    "gt.json": {"annotations": [{"image_id": i, "caption": text, "id": 9} for i, text in PAIRS]},
    "karpathy.json": karpathy(PHOTOS, dict.fromkeys(PHOTOS, "test")),
    "blip.json": BLIP,
    "dict.json": {139: ["a room", "", "a table"], 285: BEAR, 7: []},
    "capevalkit.jsonl": lines(*EVALKIT),
    "a.TSV": "image_id\ttext\n" + "".join(f"{i}\t{text}\n" for i, text in PAIRS),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_each_form_of_references_gives_the_captions_that_are_not_empty(write, name):
    found = read_references(write(REFERENCES[name], name))
    assert {int(i): texts for i, texts in found.items()} == {139: ROOM, 285: BEAR}


def test_ids_match_as_text_where_they_are_unambiguous():
    references = {139: ["a"], 285: ["b"], "a.jpg": ["c"]}
    assert of_images(["139", "a.jpg#3"], references) == {"139": ["a"], "a.jpg#3": ["c"]}
    assert of_images([139], {"139": ["a"], "285": ["b"]}) == {139: ["a"]}
    both = {139: ["a"], "139": ["b"]}
    assert of_images(both, both) == both
    for references in ({5: ["a"], 7: ["c"]}, {5: ["a"], 6: [], 7: ["c"]}):
        kept, lacking = with_references({5: "a", 6: "b", "7": "c"}, references)
        assert (kept, lacking) == ({5: "a", "7": "c"}, [6])


SEVERAL = " has several captions, as references have: give one prediction per image"
BAD = [
    ([], ": no predictions: nothing to score"),
    ({"5": "a man"}, ": row 1 has no captions: expected text in a column"),
    ([{"caption": "a"}], ": row 1 has no image_id (an integer or a string)"),
    (
        [{"image_id": i, "caption": c} for i, c in ((5, "a"), ("5", "b"))],
        ": row 2: image_id '5' oc",
    ),
    (BLIP, f": row 1 (image_id 139){SEVERAL}"),
    (coco(PHOTOS), f": row 1 of images (image_id 900){SEVERAL}"),
]


@pytest.mark.parametrize(("content", "message"), BAD)
def test_bad_predictions_are_one_line(write, content, message):
    path = write(content)
    with raises_line(UserError, start=f"{path}{message}"):
        read_predictions(path)


@pytest.mark.parametrize("content", [{}, {"5": "a man"}, [{"image": "a.jpg", "caption": " "}]])
def test_a_file_without_references_is_one_line(write, content):
    with raises_line(UserError, "no reference captions: check that this is the right file"):
        read_references(write(content))


def test_cut_predictions_are_counted(write, capsys):
    marked = [{"image_id": n, "caption": "a", "cut": cut} for n, cut in enumerate((True, False))]
    path = write(marked)
    read_predictions(path)
    assert f"{path}: 1 of 2 captions were cut at max_length" in capsys.readouterr().err
