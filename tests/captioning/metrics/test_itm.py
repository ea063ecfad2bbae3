"""Image-text matching of each image and caption, and which file an image id stands for."""

import json

import pytest
import torch
from PIL import Image

from BLIP.itm import load_itm
from captioning.data.image import evaluation_transform
from captioning.metrics.base import CaptionSet, Settings, build_evaluators
from captioning.metrics.image_files import find_images
from captioning.metrics.intervals import mean_estimate
from captioning.runtime.errors import UserError

PREDICTIONS = {7: "the cat", "b": "", 3: "a dog " * 20, 9: "a man with a ball"}


def itm(path, images, **settings):
    [evaluator] = build_evaluators(["itm"], Settings(images, **settings), itm_model=str(path))
    return evaluator


def test_itm_and_itc_of_each_image(itm_checkpoint, photos):
    files = dict(zip(PREDICTIONS, photos))
    captions = CaptionSet(PREDICTIONS, {image_id: ["a"] for image_id in files})
    result = itm(itm_checkpoint, files, batch_size=3).evaluate(captions)
    model, _ = load_itm(str(itm_checkpoint))
    expected = []
    for image_id, caption in PREDICTIONS.items():
        image = Image.open(files[image_id]).convert("RGB")
        encoded = model.encode(evaluation_transform(48)(image)[None])
        heads = model.match(encoded, [[caption]]), model.similarity(encoded, [[caption]])
        expected.append([100 * head.item() for head in heads])
    for name, column in zip(("ITM", "ITC"), zip(*expected)):
        assert result.per_caption[name] == pytest.approx(list(column), abs=1e-3)
        assert result.metrics[name] == mean_estimate(result.per_caption[name])
    assert result.settings == {"itm_model": str(itm_checkpoint), "itm_truncated": 1}


def test_what_is_wrong_is_said_before_captions_are_made(make_captioner, tmp_path):
    def unavailable(path):
        return itm(path, {}).unavailable()

    found = unavailable(tmp_path / "none.pth")
    assert found.keys() == {"ITM", "ITC"} and "none.pth does not exist" in found["ITM"]
    torch.save(make_captioner().state_dict(), tmp_path / "captioner.pth")
    assert "has no image-text matching head" in unavailable(tmp_path / "captioner.pth")["ITC"]
    with pytest.raises(UserError, match="itm_model: "):
        itm(tmp_path / "captioner.pth", {}).evaluate(CaptionSet({}, {}))


COCO, SEVEN = "COCO_val2014_000000000042.jpg", "000000000007.PNG"


@pytest.fixture
def folder(tmp_path):
    """Return a folder of files that bear the names of images."""
    (tmp_path / "images" / "val").mkdir(parents=True)
    for name in (f"val/{COCO}", f"val/{SEVEN}", "cat.jpg", "cat.txt"):
        (tmp_path / "images" / name).touch()
    return tmp_path / "images"


def find(folder, references, ids):
    path = folder.parent / "references.json"
    path.write_text(json.dumps(references))
    return {i: file.name for i, file in find_images(folder, path, ids).items()}


@pytest.mark.parametrize(
    ("references", "expected"),
    [
        ({"42": ["a"]}, {42: COCO, "7": SEVEN, "cat": "cat.jpg", f"val/{SEVEN}": SEVEN}),
        ({"images": [{"id": 42}], "annotations": [{"image_id": 42, "caption": "a"}]}, {42: COCO}),
        # The annotation goes before the name.
        ([{"image": "cat.jpg", "caption": "a", "image_id": 42}], {42: "cat.jpg", 7: SEVEN}),
        ({"images": [{"id": 42, "file_name": "cat.jpg"}], "annotations": []}, {"42": "cat.jpg"}),
    ],
)
def test_files_of_a_folder(folder, references, expected):
    assert find(folder, references, list(expected)) == expected


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
