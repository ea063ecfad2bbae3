"""Which file an image id stands for: by annotation, by COCO's names, by a mapping."""

import json

import pytest

from captioning.metrics.image_files import find_images
from captioning.runtime.errors import UserError


@pytest.fixture
def folder(tmp_path):
    """Return a folder of files that bear the names of images."""
    names = ["val/COCO_val2014_000000000042.jpg", "val/000000000007.PNG", "cat.jpg", "cat.txt"]
    for name in names:
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return tmp_path / "images"


def find(folder, references, ids):
    path = folder.parent / "references.json"
    path.write_text(json.dumps(references))
    found = find_images(folder, path, ids)
    return {i: file.name for i, file in found.items()}


def test_by_file_name(folder):
    ids = [42, "7", "cat", "val/000000000007.PNG"]
    expected = ["COCO_val2014_000000000042.jpg", "000000000007.PNG", "cat.jpg", "000000000007.PNG"]
    assert find(folder, {"42": ["a"]}, ids) == dict(zip(ids, expected))
    coco = {"images": [{"id": 42}], "annotations": [{"image_id": 42, "caption": "a"}]}
    assert find(folder, coco, [42]) == {42: "COCO_val2014_000000000042.jpg"}


def test_the_annotation_goes_before_the_name(folder):
    rows = [{"image": "cat.jpg", "caption": "a", "image_id": 42}]
    assert find(folder, rows, [42, 7]) == {42: "cat.jpg", 7: "000000000007.PNG"}
    coco = {"images": [{"id": 42, "file_name": "cat.jpg"}], "annotations": []}
    assert find(folder, coco, ["42"]) == {"42": "cat.jpg"}


def test_a_mapping_is_relative_to_its_folder(folder):
    mapping = folder.parent / "files.json"
    mapping.write_text('{"1": "images/cat.jpg", "2": "absent.jpg"}')
    found = find_images(mapping, folder, [1])
    assert found == {1: folder.parent / "images" / "cat.jpg"}
    with pytest.raises(UserError, match=r"image_id 2: found no image file for it in .*files.json"):
        find_images(mapping, folder, [1, 2])
    mapping.write_text("[]")
    with pytest.raises(UserError, match=r"expected {image id: image file}"):
        find_images(mapping, folder, [1])


def test_an_id_of_no_or_two_files(folder):
    with pytest.raises(UserError, match="image_id 8: found no image file for it in"):
        find(folder, {"42": ["a"]}, [42, 8])
    (folder / "COCO_train2014_000000000042.jpg").write_bytes(b"")
    with pytest.raises(UserError, match=r"image_id 42 may be .*train2014.* or .*val2014.*: give"):
        find(folder, {"42": ["a"]}, [42])
