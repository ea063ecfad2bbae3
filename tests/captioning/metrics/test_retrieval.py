"""Self-retrieval against a count of every similarity, and the pools that it accepts."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from captioning.metrics.base import CaptionSet, Settings, build_evaluators
from captioning.metrics.clip import Clip
from captioning.metrics.intervals import mean_estimate
from captioning.metrics.retrieval import own_image_rank
from captioning.runtime.errors import UserError

PREDICTIONS = {7: "the cat", "b": "a dog and the ball", 3: "", 9: "the dog's cat and"}


@pytest.fixture
def evaluate(clip_folder, photos, tmp_path):
    """Return a function that retrieves among the four photos and a pool."""

    def run(pool=None, images=photos, root=None):
        settings = Settings(dict(zip(PREDICTIONS, images)), root, tmp_path / "cache")
        captions = CaptionSet(PREDICTIONS, {image_id: ["a"] for image_id in PREDICTIONS})
        options = {"clip_model": str(clip_folder), "pool": pool and str(pool)}
        [evaluator] = build_evaluators(["retrieval"], settings, **options)
        return evaluator.evaluate(captions)

    return run


@pytest.fixture
def pool(photos, tmp_path):
    """Return a folder of eight images: six of its own, and two of the photos."""
    folder = tmp_path / "pool"
    (folder / "within").mkdir(parents=True)
    for number in range(6):
        size = (30 + number, 40)
        coarse = np.random.default_rng(50 + number).integers(0, 255, (3, 3, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize(size, Image.BICUBIC).save(folder / f"other_{number}.png")
    for photo in photos[:2]:
        shutil.copy(photo, folder / "within")
    (folder / "notes.txt").write_text("no image")
    return folder


def naive_ranks(folder, own, further):
    clip = Clip(str(folder))
    images = [clip.image_features(clip.read_image(path)[None])[0] for path in [*own, *further]]
    found = []
    for number, caption in enumerate(PREDICTIONS.values()):
        text = clip.text_features([caption])[0].double()
        similar = [(text @ image.double()).item() for image in images]
        found.append(sum(value >= similar[number] for value in similar))
    return found


def test_the_captions_own_images_are_the_pool(evaluate, clip_folder, photos):
    result = evaluate()
    expected = naive_ranks(clip_folder, photos, [])
    assert result.per_caption["rank"] == expected and len(set(expected)) > 1
    for k in (1, 5, 10):
        assert result.per_caption[f"R@{k}"] == [100.0 * (rank <= k) for rank in expected]
        assert result.metrics[f"R@{k}"] == mean_estimate(result.per_caption[f"R@{k}"])
    assert result.metrics["median_rank"].value == np.median(expected)
    assert result.settings["pool"] == "4 images (the captions' own)"


def test_a_pool_is_a_folder_a_list_or_features(evaluate, clip_folder, photos, pool, tmp_path):
    further = sorted(pool.glob("other_*.png"))
    expected = naive_ranks(clip_folder, photos, further)
    assert expected != naive_ranks(clip_folder, photos, [])
    listed = [str(path.relative_to(tmp_path)) for path in sorted(pool.rglob("*.png"))]
    (tmp_path / "list.txt").write_text("\n".join(listed) + "\n\n")
    clip = Clip(str(clip_folder))
    files = [*further, photos[2]]
    features = clip.image_features(torch.stack([clip.read_image(path) for path in files]))
    names = [path.name for path in files]
    np.savez(tmp_path / "features.npz", features=3 * features.numpy().astype(float), files=names)
    rows = [{"image": name, "caption": text} for name in listed for text in ("one", "two")]
    (tmp_path / "split.json").write_text(json.dumps(rows))
    for given in ("list.txt", "split.json", "features.npz", "pool"):
        given = tmp_path / given
        result = evaluate(given)
        assert result.per_caption["rank"] == expected, given
        assert result.settings["pool"] == f"10 images ({given})"


def test_images_of_one_name_are_two_and_a_file_of_the_cache_is_a_pool(evaluate, tmp_path):
    for folder, colour in (("a", "red"), ("b", "blue")):
        (tmp_path / "pool" / folder).mkdir(parents=True)
        Image.new("RGB", (30, 30), colour).save(tmp_path / "pool" / folder / "1.ppm")
    before = evaluate(tmp_path / "pool")
    assert before.settings["pool"].startswith("6 images")
    cached = {len(np.load(path)["files"]): path for path in (tmp_path / "cache").iterdir()}
    assert evaluate(cached[2]).metrics == before.metrics  # a file of the cache is a pool


def test_ties_count_against_the_caption():
    images = np.array([[1, 0], [0.6, 0.8], [1, 0], [0.6, 0.8], [0, 1]], dtype=np.float32)
    captions = np.array([[1, 0], [0, 1], [1, 0], [0.6, 0.8]], dtype=np.float32)
    nearly = images.copy()  # of equal images, the later one's similarity is lower by rounding
    nearly[2:4] *= 1 - 2e-7
    for each in (images, nearly):
        found = [own_image_rank(text, each, own) for text, own in zip(captions, [0, 4, 1, 1])]
        assert found == [2, 1, 4, 2]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.xml", "a", "is not a folder, a list of images or an .npz file"),
        ("a.txt", "absent.png", "absent.png: no such file"),
        ("a.json", "[]", "holds no images"),
        ("a.npz", "broken", "cannot be read"),
        ("a.npz", {"features": np.ones((2, 16))}, "cannot be read: .files is not a file in the"),
        ("a.npz", {"features": np.ones((2, 16)), "files": ["a"]}, "2 features of 1 files"),
        ("a.npz", {"features": np.array([["x"] * 16]), "files": ["a"]}, "cannot be read"),
        ("a.npz", {"features": np.ones((1, 15)), "files": ["a"]}, "of width 15, clip_model of 16"),
    ],
)
def test_a_pool_that_holds_no_images_or_features_is_refused(
    evaluate, tmp_path, name, content, message
):
    path = tmp_path / name
    path.write_text(content) if isinstance(content, str) else np.savez(path, **content)
    with pytest.raises(UserError, match=message):
        evaluate(path)
