"""Image-text matching of each image and caption, and which file an image id stands for."""

import json

import pytest
import torch
from PIL import Image

from BLIP.itm import load_itm
from captioning.data.image import evaluation_transform
from captioning.metrics.evaluator import CaptionSet, Settings
from captioning.metrics.image_files import find_images
from captioning.metrics.itm import Itm
from captioning.runtime.errors import UserError

PREDICTIONS = {7: "the cat", "b": "", 3: "a dog " * 20, 9: "a man with a ball"}


def test_itm_and_itc_of_each_image(itm_checkpoint, photos):
    files = dict(zip(PREDICTIONS, photos))
    captions = CaptionSet(PREDICTIONS, {image_id: ["a"] for image_id in files})
    settings = Settings(images=files, batch_size=3)
    result = Itm(settings, itm_model=str(itm_checkpoint)).evaluate(captions)
    model, _ = load_itm(str(itm_checkpoint))
    expected = []
    for image_id, caption in PREDICTIONS.items():
        image = Image.open(files[image_id]).convert("RGB")
        encoded = model.encode(evaluation_transform(48)(image)[None])
        heads = model.match(encoded, [[caption]]), model.similarity(encoded, [[caption]])
        expected.append([100 * head.item() for head in heads])
    for place, name in enumerate(("ITM", "ITC")):
        column = [each[place] for each in expected]
        assert result.per_image[name] == pytest.approx(column, abs=1e-3)
        assert result.metrics[name].value == pytest.approx(sum(column) / 4, abs=1e-3)
    assert result.settings == {"itm_model": str(itm_checkpoint), "itm_truncated": 1}


def test_what_is_wrong_is_said_before_captions_are_made(make_captioner, tmp_path):
    def unavailable(path):
        return Itm(Settings(images={}), itm_model=str(path)).unavailable()

    found = unavailable(tmp_path / "none.pth")
    assert found.keys() == {"ITM", "ITC"} and "none.pth does not exist" in found["ITM"]
    torch.save(make_captioner().state_dict(), tmp_path / "captioner.pth")
    assert "has no image-text matching head" in unavailable(tmp_path / "captioner.pth")["ITC"]
    with pytest.raises(UserError, match="itm_model: "):
        Itm(itm_model=str(tmp_path / "captioner.pth")).evaluate(CaptionSet({}, {}))


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
