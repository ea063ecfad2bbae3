import json

import pytest

from captioning.data import Sample, read_annotations
from captioning.runtime.errors import UserError


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a file, a string as it is and anything else as JSON."""

    def write_file(content, name="annotation.json"):
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
        return tmp_path / name

    return write_file


BLIP = [
    {"image": "b/x_2.jpg", "caption": "one", "image_id": "coco_2"},
    {"image": "a/x_1.jpg", "caption": "two", "image_id": "coco_1"},
    {"image": "b/x_2.jpg", "caption": "three", "image_id": "coco_2"},
]
GROUPED = [Sample("b/x_2.jpg", ("one", "three"), "coco_2"), Sample("a/x_1.jpg", ("two",), "coco_1")]
JSONL = '{"image": "a.jpg", "caption": "o\u2028e"}\n\n{"image": "b.jpg", "captions": ["x"]}\n'
OF_JSONL = [Sample("a.jpg", ("o\u2028e",), "a.jpg"), Sample("b.jpg", ("x",), "b.jpg")]
CSV = 'image_id,image,caption\r\n5,a.jpg,"red, green\nand blue"\r\n,b_3.jpg,two\r\n'
CSV += "007,c.jpg,three\r\n5,a.jpg,four\r\n"
OF_CSV = [Sample("a.jpg", ("red, green\nand blue", "four"), 5), Sample("b_3.jpg", ("two",), 3)]


@pytest.mark.parametrize(
    ("content", "name", "expected"),
    [
        (BLIP, "a.json", GROUPED),
        (JSONL, "a.jsonl", OF_JSONL),
        (
            'image,captions\nb_3.jpg,"[""a dog"", ""b""]"\n',
            "a.csv",
            [Sample("b_3.jpg", ("a dog", "b"), 3)],
        ),
        (CSV, "a.csv", [*OF_CSV, Sample("c.jpg", ("three",), "007")]),
    ],
)
def test_rows_of_an_image_are_one_sample(write, content, name, expected):
    assert read_annotations(write(content, name)) == expected


@pytest.mark.parametrize(
    ("row", "sample"),
    [
        ({"image": "val2014/COCO_val2014_000000000042.jpg"}, ("a", 42)),
        ({"image": "photo7/jpg.jpg"}, ("a", "photo7/jpg.jpg")),
        ({"image": "12_a.png"}, ("a", "12_a.png")),
        ({"image": "scan.v2.png"}, ("a", 2)),
        ({"image": "00017"}, ("a", 17)),
        ({"image": "x_1.jpg", "image_id": 0}, ("a", 0)),
        ({"image": "x_1.jpg", "image_id": "seven"}, ("a", "seven")),
        ({"image": "x_1.jpg", "image_id": None}, ("a", 1)),
        ({"image": "x_1.jpg", "caption": ["b", " ", "c\n"]}, ("b", "c\n", 1)),
    ],
)
def test_an_id_is_the_number_that_the_name_ends_in_unless_there_is_one(write, row, sample):
    (found,) = read_annotations(write([{"caption": "a", **row}, {**row, "caption": ""}]))
    assert found == Sample(row["image"], sample[:-1], sample[-1])


def test_where_two_names_end_in_the_same_number_all_images_have_their_paths(write):
    names = ["111_ab5.jpg", "222_cd05.jpg", "9.jpg", "x.jpg"]  # Flickr8k's names end in hashes
    rows = [{"image": name, "caption": "a"} for name in names]
    rows[3]["image_id"] = 3
    assert [sample.image_id for sample in read_annotations(write(rows))] == [*names[:3], 3]


def karpathy_entry(filename, split, **ids):
    sentences = [{"raw": f"{filename} one", "tokens": []}, {"raw": f"{filename} two"}]
    return {"filename": filename, "split": split, "sentences": sentences, **ids}


def test_a_split_of_karpathys_file_has_its_photos_and_train_those_of_restval(write):
    entries = [
        karpathy_entry("x_5.jpg", "train", filepath="train2014", cocoid=5, imgid=0),
        karpathy_entry("y.jpg", "val", imgid=1),
        karpathy_entry("z.jpg", "restval", imgid=2),
    ]
    path = write({"images": entries, "dataset": "coco"})
    train = read_annotations(path, "train")
    assert train[0] == Sample("train2014/x_5.jpg", ("x_5.jpg one", "x_5.jpg two"), 5)
    assert [sample.image_id for sample in train] == [5, 2]
    assert [sample.image for sample in read_annotations(path, "val")] == ["y.jpg"]
    assert len(read_annotations(path)) == 3
    with pytest.raises(UserError, match="no samples of split test"):
        read_annotations(path, "test")
