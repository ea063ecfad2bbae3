"""Samples of annotation files, predictions and references, and how ids are matched."""

import json

import pytest

from captioning.data.annotations import Sample, read_annotations
from captioning.data.caption_files import (
    ids_by_name,
    of_images,
    read_predictions,
    read_references,
    with_references,
)
from captioning.runtime.errors import UserError
from tests.programs import raises_line


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a file, as JSON unless it is text, and gives its path."""

    def write_file(content, name="file.json"):
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / name).write_text(text, "utf-8-sig")
        return tmp_path / name

    return write_file


BLIP = [
    {"image": "b/x_2.jpg", "caption": "one", "image_id": "coco_2"},
    {"image": "./b//x_2.jpg", "caption": "three", "image_id": "coco_2", "prompt": "the"},
]


def test_rows_of_an_image_are_one_sample_however_its_name_is_written(write):
    assert read_annotations(write(BLIP)) == [
        Sample("b/x_2.jpg", ("one", "three"), "coco_2", "the"),
    ]


IDS = {
    "val2014/COCO_val2014_000000000042.jpg": 42,
    "photo7/jpg.jpg": "photo7/jpg.jpg",
    "12_a.png": "12_a.png",
    "scan.v2.png": 2,
    "00017": 17,
}


def test_an_id_is_the_number_that_the_name_ends_in_unless_there_is_one(write):
    found = read_annotations(write([{"image": name, "caption": "a"} for name in IDS]))
    assert {sample.image: sample.image_id for sample in found} == IDS
    rows = [{"image": f"x_{n}.jpg", "caption": ["b", " ", "c\n"], "image_id": 0} for n in (1, 1)]
    found = read_annotations(write([*rows, {"image": "x_2.jpg", "caption": "d", "image_id": None}]))
    assert [sample[1:3] for sample in found] == [(("b", "c\n") * 2, 0), (("d",), 2)]


def test_where_names_or_ids_are_ambiguous_images_have_other_ids(write):
    names = ["111_ab5.jpg", "222_cd05.jpg", "9.jpg", "x.jpg"]  # Flickr8k's names end in hashes
    rows = [{"image": name, "caption": "a"} for name in names]
    rows[3]["image_id"] = 3
    assert [sample.image_id for sample in read_annotations(write(rows))] == [*names[:3], 3]


def test_a_split_of_karpathys_file_has_its_photos_and_train_those_of_restval(write):
    photos = [
        {"filename": "x_5.jpg", "split": "train", "filepath": "train2014", "cocoid": 5, "imgid": 0},
        {"filename": "y.jpg", "split": "val", "imgid": 1},
        {"filename": "z.jpg", "split": "restval", "imgid": 2},
    ]
    entries = [{**photo, "sentences": [{"raw": "one"}, {"raw": "two"}]} for photo in photos]
    path = write({"images": entries, "dataset": "coco"})
    train = read_annotations(path, "train")
    assert train[0] == Sample("train2014/x_5.jpg", ("one", "two"), 5)
    assert [sample.image_id for sample in train] == [5, 2]
    assert len(read_annotations(path)) == 3
    with pytest.raises(UserError, match="no samples of split test"):
        read_annotations(path, "test")


ROW = {"image": "x.jpg", "caption": "a dog"}
COCO = {"images": [], "annotations": [{"image_id": 1, "id": 1}]}
NO_CAPTION = (
    "1 of {} images have no caption, such as {}.jpg: expected text in a column captions, caption, "
    "text, comment; "
)
NEEDS_NONE = NO_CAPTION.format(1, "x") + "scripts/caption.sh needs none"
SKIP = NO_CAPTION.format(2, "y") + "or set skip_bad_images=true to leave them out"
SEVERAL = " has several captions, as references have: give one prediction per image"
SAME = "x.jpg and b/x.jpg have the same image id 'x.jpg': give each"
TWO = [{"image_id": image_id, "caption": text} for image_id, text in ((5, "a"), ("5", "b"))]
BAD = [
    (read_annotations, [], "no samples: check that this is the right file"),
    (read_annotations, [{"image": "x.jpg"}], NEEDS_NONE),
    (read_annotations, [ROW, {"image": "y.jpg", "captions": ["", 1]}], SKIP),
    (read_annotations, COCO, "captions of image_id 1 has no image: expected text in a column"),
    (read_annotations, [{**ROW, "id": 1}, {**ROW, "id": 2}], "row 2: x.jpg has the image_id 2 he"),
    (read_annotations, [ROW, {"image": "b/x.jpg", "caption": "a", "id": "x.jpg"}], SAME),
    (read_predictions, [], "no predictions: nothing to score"),
    (read_predictions, {"5": "a man"}, "row 1 has no captions: expected text in a column"),
    (read_predictions, [{"caption": "a"}], "row 1 has no image_id (an integer or a string)"),
    (read_predictions, TWO, "row 2: image_id '5' occurs twice, with two captions: keep one of"),
    (read_predictions, [{"id": 1, "caption": ["a", "b"]}], f"row 1 (image_id 1){SEVERAL}"),
    (read_references, [{"id": 1, "caption": " "}], "no reference captions: check that this"),
]


@pytest.mark.parametrize(("read", "content", "message"), BAD)
def test_a_bad_file_is_refused_in_one_line(write, read, content, message):
    path = write(content)
    with raises_line(UserError, start=f"{path}: {message}"):
        read(path)


def test_a_folder_of_photos_has_captions_beside_them_or_is_refused(tmp_path, capsys):
    with raises_line(UserError, "the folder has no photos and no metadata.jsonl"):
        read_annotations(tmp_path)
    for name in ("a.png", "b.png", "b.svg", "c.svg", "d.CR2"):
        (tmp_path / name).touch()
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    (tmp_path / "b.txt").touch()
    for _ in range(2):
        assert read_annotations(tmp_path, skip_bad=True) == [
            Sample("a.png", ("one", "two"), "a.png")
        ]
    kinds = f"{tmp_path}: left out, not taken for images: 1 .CR2, 2 .svg\n"
    lacking = f"{tmp_path}: 1 of 2 images have no caption, such as b.png: they are left out\n"
    assert capsys.readouterr().err == kinds + lacking  # once


def lines(*objects):
    return "".join(json.dumps(each) + "\n" for each in objects)


SCORED = {
    "captions.jsonl": lines(  # our own
        {"image": "a/photo_7.jpg", "caption": "a", "captions": ["a", "c"], "cut": True},
        {"image_id": "x", "captions": ["", "c"]},
    ),
    "capevalkit.jsonl": lines(
        {"id": 7, "caption": "a", "references": ["r"]}, {"id": "x", "caption": [""]}
    ),
    "captions.CSV": "caption,image_id\na,7\n,x\na,7\n",
}


@pytest.mark.parametrize("name", SCORED)
def test_predictions_have_the_ids_of_the_file_and_cut_ones_are_counted(write, name, capsys):
    path = write(SCORED[name], name)
    assert read_predictions(path) == {7: "a", "x": ""}
    cut = f"{path}: 1 of 2 captions were cut at max_length\n" if name == "captions.jsonl" else ""
    assert capsys.readouterr().err == cut


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


def test_references_give_ids_to_the_names_of_images(write):
    photo = {"filename": "111_ab5.jpg", "imgid": 3, "sentences": [{"raw": "a"}], "split": "test"}
    assert ids_by_name(write({"images": [photo]})) == {"111_ab5.jpg": 3}  # Karpathy's
    assert ids_by_name(write({"heron_42.jpg": ["a"]})) == {"heron_42.jpg": "heron_42.jpg"}


ROOM, BEAR = ["a room", "a table"], ["a bear"]
PAIRS = [(139, "a room"), (285, "a bear"), (139, " "), (139, "a table"), (7, "")]
REFERENCES = {
    "gt.json": {"annotations": [{"image_id": i, "caption": text, "id": 9} for i, text in PAIRS]},
    "capevalkit.jsonl": lines(
        {"id": 139, "caption": "x", "references": ROOM}, {"id": 285, "references": BEAR}
    ),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_references_are_the_captions_that_are_not_empty(write, name):
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
