"""Image-text matching of each image and caption, and which file an image id stands for."""

import json
import re

import pytest
from PIL import Image

from BLIP.itm import load_itm
from captioning.data.image import evaluation_transform
from captioning.metrics.base import Settings
from captioning.metrics.image_files import find_images
from captioning.metrics.intervals import mean_estimate
from captioning.runtime.errors import UserError
from tests.captioning.metrics.conftest import scored
from tests.programs import raises_line

PREDICTIONS = {7: "the cat", "b": "", 3: "a dog " * 20, 9: "a man with a ball"}


def test_itm_and_itc_of_each_image(itm_checkpoint, photos):
    files, path = dict(zip(PREDICTIONS, photos)), str(itm_checkpoint)
    result = scored("itm", PREDICTIONS, None, Settings(files, batch_size=3), itm_model=path)
    model, _ = load_itm(path)
    expected = []
    for image_id, caption in PREDICTIONS.items():
        image = Image.open(files[image_id]).convert("RGB")
        encoded = model.encode(evaluation_transform(48)(image)[None])
        heads = model.match(encoded, [[caption]]), model.similarity(encoded, [[caption]])
        expected.append([100 * head.item() for head in heads])
    for name, column in zip(("ITM", "ITC"), zip(*expected)):
        assert result.per_caption[name] == pytest.approx(list(column), abs=1e-3)
        assert result.metrics[name] == mean_estimate(result.per_caption[name])
    assert result.settings == {"itm_model": path, "itm_truncated": 1}


COCO, SEVEN = "COCO_val2014_000000000042.jpg", "000000000007.PNG"


@pytest.fixture
def find(tmp_path):
    """Return a function that finds the images of ids in a folder of files with such names."""
    (tmp_path / "images" / "val").mkdir(parents=True)
    for name in (f"val/{COCO}", f"val/{SEVEN}", "cat.jpg", "cat.txt"):
        (tmp_path / "images" / name).touch()

    def find_names(ids, references=None, source="images"):
        path = tmp_path / "references.json"
        path.write_text(json.dumps(references or {"42": ["a"]}))
        found = find_images(tmp_path / source, path, ids)
        return {i: file.relative_to(tmp_path / "images").name for i, file in found.items()}

    return find_names


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
def test_files_of_a_folder(find, references, expected):
    assert find(list(expected), references) == expected


def test_a_mapping_is_relative_to_its_folder_and_an_id_has_one_file(find, tmp_path):
    mapping = tmp_path / "files.json"
    mapping.write_text('{"1": "images/cat.jpg", "2": "absent.jpg"}')
    assert find([1], source="files.json") == {1: "cat.jpg"}
    (tmp_path / "images" / "COCO_train2014_000000000042.jpg").touch()
    (tmp_path / "empty.json").write_text("[]")
    for ids, source, line in (
        ([1, 2], "files.json", "image_id 2: found no image file for it in .*files.json"),
        ([1], "empty.json", "expected {image id: image file}"),
        ([8], "images", "image_id 8: found no image file for it in"),
        ([42], "images", "image_id 42 may be .*train2014.* or .*val2014.*: give"),
    ):
        with raises_line(UserError) as error:
            find(ids, source=source)
        assert re.search(line, str(error.value))
