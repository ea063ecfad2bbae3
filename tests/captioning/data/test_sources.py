"""Which files a split is read from, what is downloaded, and references."""

import hashlib
import json
from types import SimpleNamespace

import pytest

from BLIP.download import DownloadError
from captioning.data.sources import SHA256, annotation_paths, read_split
from captioning.data.sources import references as references_of
from captioning.runtime.errors import UserError
from tests.programs import raises_line

FILES = ("train_file", "val_file", "test_file", "val_gt_file", "test_gt_file")


@pytest.fixture
def configured(tmp_path):
    (tmp_path / "gt").mkdir()

    def make(dataset="coco", **keys):
        defaults = {"ann_root": str(tmp_path), "image_root": ".", "coco_gt_root": f"{tmp_path}/gt"}
        keys = {**dict.fromkeys((*FILES, "split", "skip_bad_images")), **defaults, **keys}
        return SimpleNamespace(dataset=dataset, **keys)

    return make


def references(config, split):
    return references_of(config, split, read_split(config, split))


def write(path, content):
    path.write_text(json.dumps(content))


def gt(*pairs):
    return {"annotations": [{"image_id": i, "caption": c} for i, c in pairs], "images": []}


ROWS = [{"image": "x_2.jpg", "caption": ["own two"]}, {"image": "x_1.jpg", "caption": ["own one"]}]
OWN = {2: ["own two"], 1: ["own one"]}


def test_only_missing_files_of_known_data_sets_are_downloaded(tmp_path, configured, monkeypatch):
    def download(url, destination, sha256=None):
        if "train" in url:
            raise DownloadError(f"{url}: no route to host")
        downloads.append((url.rpartition("/")[2], destination, sha256))
        write(destination, ROWS)

    downloads = []
    monkeypatch.setattr("BLIP.download.download", download)
    for dataset, name in (("coco", "coco_karpathy_val.json"), ("flickr30k", "flickr30k_val.json")):
        for _ in range(2):
            assert annotation_paths(configured(dataset), "val") == [tmp_path / name]
        assert downloads == [(name, tmp_path / name, SHA256.get(name))]
        downloads.clear()
    assert references(configured(), "val") == OWN
    name = "coco_karpathy_val_gt.json"
    assert downloads == [(name, tmp_path / "gt" / name, SHA256[name])]
    with raises_line(UserError, "no route to host", str(tmp_path / "coco_karpathy_train.json")):
        annotation_paths(configured(), "train")
    assert len(downloads) == 1
    with pytest.raises(UserError, match=r"mine\.json: no such file"):
        read_split(configured(test_file="mine.json"), "test")
    with pytest.raises(UserError, match="custom needs val_file"):
        annotation_paths(configured("custom"), "val")
    with pytest.raises(UserError, match=r"coco_gt_root is not set: .* coco_karpathy_val_gt\.json"):
        references(configured(coco_gt_root=None), "val")


def test_a_split_of_several_files_has_the_images_of_all_in_their_order(tmp_path, configured):
    of_file = {"a.json": ["2.jpg", "1.jpg"], "b.json": ["3.jpg"], "again.json": ["other/1.jpg"]}
    for name, images in of_file.items():
        write(tmp_path / name, [{"image": image, "caption": f"of {image}"} for image in images])
    config = configured("custom", test_file=["a.json", str(tmp_path / "b.json")])
    assert [sample.image_id for sample in read_split(config, "test")] == [2, 1, 3]
    assert references(config, "test") == {n: [f"of {n}.jpg"] for n in (1, 2, 3)}
    config = configured("custom", train_file=["a.json", "again.json"])
    with pytest.raises(UserError, match=r"a\.json and .*again\.json both have image id 1: "):
        read_split(config, "train")


def test_references_without_a_gt_file_are_the_captions(tmp_path, configured):
    for name in ("flickr30k_val", "coco_karpathy_train", "mine"):
        write(tmp_path / f"{name}.json", ROWS)
    assert references(configured("flickr30k"), "val") == OWN
    assert references(configured(), "train") == OWN
    # COCO's references are not those of another file.
    assert references(configured(val_file="mine.json"), "val") == OWN


def test_references_of_a_gt_file_are_those_of_the_split_alone_in_its_order(tmp_path, configured):
    write(tmp_path / "v.json", ROWS)
    write(tmp_path / "gt/g.json", gt((1, "a"), (2, "b"), (3, "c"), (1, "d")))
    config = configured("custom", val_file="v.json", val_gt_file="g.json")
    assert list(references(config, "val").items()) == [(2, ["b"]), (1, ["a", "d"])]
    divided = {"train_file": "v.json", "split": {"val": 0.5, "seed": 0}}  # its data set is COCO
    ((image_id, captions),) = references(configured(**divided), "val").items()
    assert captions == OWN[image_id]
    found = references(configured(**divided, val_gt_file="g.json"), "val")
    assert found == {image_id: {1: ["a", "d"], 2: ["b"]}[image_id]}
    write(tmp_path / "gt/g.json", gt((1, "a"), (8, "b")))
    with pytest.raises(UserError, match=r"1 of 2 images, the first is x_2\.jpg \(image id 2\)"):
        references(config, "val")


@pytest.mark.parametrize("name", SHA256)
def test_checksums_are_those_of_the_distributed_files(shared_data, name):
    data = (shared_data / "karpathy" / name).read_bytes()
    assert hashlib.sha256(data).hexdigest() == SHA256[name]
