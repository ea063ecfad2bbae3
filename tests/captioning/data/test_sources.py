import hashlib
import json
from types import SimpleNamespace

import pytest

from BLIP.weights.download import DownloadError
from captioning.data import annotation_paths, read_split
from captioning.data import references as references_of
from captioning.data.sources import SHA256
from captioning.runtime.errors import UserError
from tests.programs import raises_line

FILES = ("train_file", "val_file", "test_file", "val_gt_file", "test_gt_file")


def make_config(folder, dataset="coco", **files):
    names = {**dict.fromkeys(FILES), **files, "ann_root": str(folder), "image_root": "."}
    return SimpleNamespace(dataset=dataset, coco_gt_root=f"{folder}/gt", split=None, **names)


@pytest.fixture(autouse=True)
def gt_folder(tmp_path):
    (tmp_path / "gt").mkdir()


def references(config, split):
    return references_of(config, split, read_split(config, split))


def write(path, content):
    path.write_text(json.dumps(content))
    return path


def gt(*pairs):
    annotations = [{"image_id": i, "caption": c, "id": n} for n, (i, c) in enumerate(pairs)]
    return {"annotations": annotations, "images": [{"id": i} for i, _ in pairs]}


ROWS = [{"image": "x_2.jpg", "caption": ["own two"]}, {"image": "x_1.jpg", "caption": ["own one"]}]


@pytest.fixture
def downloads(monkeypatch):
    """Stand in for the network: record each download and write ROWS there."""

    def download(url, destination, sha256=None, largest=0):
        assert 10**8 < largest <= 2**30  # COCO's training file fits
        if "train" in url:
            raise DownloadError(f"{url}: no route to host")
        calls.append((url, destination, sha256))
        write(destination, ROWS)

    calls = []
    monkeypatch.setattr("BLIP.weights.download.download", download)
    return calls


def test_only_a_missing_file_is_downloaded(tmp_path, downloads):
    names = {"coco": "coco_karpathy_test.json", "flickr30k": "flickr30k_test.json"}
    for dataset, name in names.items():
        config, path = make_config(tmp_path, dataset), tmp_path / name
        for _ in range(2):
            assert annotation_paths(config, "test") == [path] and path.is_file()
        url = f"https://storage.googleapis.com/sfr-vision-language-research/datasets/{name}"
        assert downloads.pop() == (url, path, SHA256[name]) and downloads == []


def test_failed_download_says_where_to_put_the_file(tmp_path, downloads):
    path = str(tmp_path / "coco_karpathy_train.json")
    with raises_line(UserError, "no route to host", path):
        annotation_paths(make_config(tmp_path), "train")


def test_configured_file_goes_first_and_is_not_downloaded(tmp_path, downloads):
    config = make_config(tmp_path, test_file="mine.json")
    assert annotation_paths(config, "test") == [tmp_path / "mine.json"]
    with pytest.raises(UserError, match=r"mine\.json: no such file"):
        read_split(config, "test")
    assert downloads == []


def test_a_split_of_several_files_has_the_images_of_all_in_their_order(tmp_path):
    of_file = {"a.json": ["2.jpg", "1.jpg"], "b.json": ["3.jpg"], "again.json": ["other/1.jpg"]}
    for name, images in of_file.items():
        write(tmp_path / name, [{"image": image, "caption": f"of {image}"} for image in images])
    names = ["a.json", "b.json"]
    config = make_config(tmp_path, "custom", test_file=names, train_file=["a.json", "again.json"])
    samples = read_split(config, "test")
    assert [sample.image_id for sample in samples] == [2, 1, 3]
    assert references(config, "test") == {2: ["of 2.jpg"], 1: ["of 1.jpg"], 3: ["of 3.jpg"]}
    with pytest.raises(UserError, match=r"a\.json and .*again\.json both have image id 1: "):
        read_split(config, "train")


def test_custom_data_set_needs_its_files(tmp_path):
    with pytest.raises(UserError, match="custom needs val_file"):
        annotation_paths(make_config(tmp_path, "custom"), "val")


def test_missing_gt_file_is_downloaded(tmp_path, downloads):
    write(tmp_path / "coco_karpathy_val.json", ROWS)
    assert references(make_config(tmp_path), "val") == {2: ["own two"], 1: ["own one"]}
    (url, destination, sha256) = downloads[0]
    assert url.endswith("/datasets/coco_karpathy_val_gt.json")
    assert destination == tmp_path / "gt/coco_karpathy_val_gt.json"
    assert sha256 == SHA256["coco_karpathy_val_gt.json"]


@pytest.mark.parametrize(
    ("dataset", "split", "files"),
    [
        ("flickr30k", "val", {}),
        ("coco", "train", {}),
        ("coco", "val", {"val_file": "mine.json"}),  # COCO's references are not those of mine
    ],
)
def test_references_without_a_gt_file_are_the_captions(tmp_path, dataset, split, files):
    for name in ("coco_karpathy_val", "flickr30k_val", "coco_karpathy_train", "mine"):
        write(tmp_path / f"{name}.json", ROWS)
    found = references(make_config(tmp_path, dataset, **files), split)
    assert found == {2: ["own two"], 1: ["own one"]}


def test_references_of_a_part_are_its_captions_unless_a_file_is_named(tmp_path, downloads):
    write(tmp_path / "mine.json", ROWS)
    config = make_config(tmp_path, train_file="mine.json")  # its data set is COCO
    write(tmp_path / "gt/g.json", gt((1, "a"), (2, "b")))
    config.split = {"val": 0.5, "seed": 0}
    own, of_file = {1: ["own one"], 2: ["own two"]}, {1: ["a"], 2: ["b"]}
    ((image_id, captions),) = references(config, "val").items()
    assert captions == own[image_id] and downloads == []
    config.val_gt_file = "g.json"
    assert references(config, "val") == {image_id: of_file[image_id]}


def test_a_configured_gt_file_gives_the_references_of_the_split_alone_in_its_order(tmp_path):
    config = make_config(tmp_path, "custom", val_file="v.json", val_gt_file="g.json")
    write(tmp_path / "v.json", ROWS)
    write(tmp_path / "gt/g.json", gt((1, "a"), (2, "b"), (3, "c"), (1, "d")))
    assert list(references(config, "val").items()) == [(2, ["b"]), (1, ["a", "d"])]
    write(tmp_path / "gt/g.json", gt((1, "a"), (8, "b")))
    with pytest.raises(UserError, match=r"1 of 2 images, the first is x_2\.jpg \(image id 2\)"):
        references(config, "val")


def test_a_gt_file_needs_a_folder(tmp_path):
    write(tmp_path / "coco_karpathy_val.json", ROWS)
    config = make_config(tmp_path)
    config.coco_gt_root = None
    with pytest.raises(UserError, match=r"coco_gt_root is not set: .* coco_karpathy_val_gt\.json"):
        references(config, "val")


@pytest.mark.parametrize("name", SHA256)
def test_checksums_are_those_of_the_distributed_files(shared_data, name):
    data = (shared_data / "karpathy" / name).read_bytes()
    assert hashlib.sha256(data).hexdigest() == SHA256[name]
