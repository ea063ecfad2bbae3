"""Self-retrieval against a count of every similarity, and the pools that it accepts."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from captioning.metrics.base import Settings
from captioning.metrics.clip import Clip
from captioning.metrics.intervals import mean_estimate
from captioning.metrics.retrieval import own_image_rank
from tests.captioning.metrics.conftest import scored

PREDICTIONS = {7: "the cat", "b": "a dog and the ball", 3: "", 9: "the dog's cat and"}


@pytest.fixture
def retrieve(clip_folder, photos, tmp_path):
    """Return a function that retrieves among the four photos and a pool."""
    settings = Settings(dict(zip(PREDICTIONS, photos)), cache_dir=tmp_path / "cache")

    def run(pool=None):
        options = {"clip_model": str(clip_folder), "pool": pool and str(tmp_path / pool)}
        return scored("retrieval", PREDICTIONS, None, settings, **options)

    return run


def naive_ranks(clip, files):
    """Return the ranks of the captions' own images, the first ones of the files."""
    images = [clip.image_features(clip.read_image(path)[None])[0].double() for path in files]
    ranks = []
    for number, caption in enumerate(PREDICTIONS.values()):
        text = clip.text_features([caption])[0].double()
        similar = [(text @ image).item() for image in images]
        ranks.append(sum(value >= similar[number] for value in similar))
    return ranks


def test_images_are_ranked_among_the_captions_own_and_a_pool(
    retrieve, clip_folder, photos, tmp_path
):
    """The pool has eight images in a folder, a list, or features: six more, and two photos."""
    clip = Clip(str(clip_folder))
    expected = naive_ranks(clip, photos)
    result = retrieve()
    assert result.per_caption["rank"] == expected and len(set(expected)) > 1
    for k in (1, 5, 10):
        assert result.per_caption[f"R@{k}"] == [100.0 * (rank <= k) for rank in expected]
        assert result.metrics[f"R@{k}"] == mean_estimate(result.per_caption[f"R@{k}"])
    assert result.metrics["median_rank"].value == np.median(expected)
    assert result.settings["pool"] == "4 images (the captions' own)"

    (tmp_path / "pool" / "within").mkdir(parents=True)
    (tmp_path / "pool" / "notes.txt").write_text("no image")
    others = [tmp_path / "pool" / f"other_{number}.png" for number in range(6)]
    for number, path in enumerate(others):
        coarse = np.random.default_rng(50 + number).integers(0, 255, (3, 3, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((30 + number, 40), Image.BICUBIC).save(path)
    for photo in photos[:2]:
        shutil.copy(photo, tmp_path / "pool" / "within")
    listed = [str(path.relative_to(tmp_path)) for path in (tmp_path / "pool").rglob("*.png")]
    (tmp_path / "list.txt").write_text("\n".join(listed) + "\n\n")
    rows = [{"image": name, "caption": text} for name in listed for text in ("one", "two")]
    (tmp_path / "split.json").write_text(json.dumps(rows))
    files = [*others, photos[2]]
    features = clip.image_features(torch.stack([clip.read_image(path) for path in files]))
    names = [path.name for path in files]
    np.savez(tmp_path / "features.npz", features=3 * features.numpy().astype(float), files=names)
    among = naive_ranks(clip, [*photos, *others])
    assert among != expected
    for pool in ("list.txt", "split.json", "features.npz", "pool"):
        result = retrieve(pool)
        assert result.per_caption["rank"] == among, pool
        assert result.settings["pool"] == f"10 images ({tmp_path / pool})"


def test_images_of_one_name_are_two_and_a_file_of_the_cache_is_a_pool(retrieve, tmp_path):
    for folder, colour in (("a", "red"), ("b", "blue")):
        (tmp_path / "pool" / folder).mkdir(parents=True)
        Image.new("RGB", (30, 30), colour).save(tmp_path / "pool" / folder / "1.ppm")
    before = retrieve("pool")
    assert before.settings["pool"].startswith("6 images")
    cached = {len(np.load(path)["files"]): path for path in (tmp_path / "cache").iterdir()}
    assert retrieve(cached[2]).metrics == before.metrics


def test_ties_count_against_the_caption():
    images = np.array([[1, 0], [0.6, 0.8], [1, 0], [0.6, 0.8], [0, 1]], dtype=np.float32)
    captions = np.array([[1, 0], [0, 1], [1, 0], [0.6, 0.8]], dtype=np.float32)
    nearly = images.copy()  # of equal images, the later one's similarity is lower by rounding
    nearly[2:4] *= 1 - 2e-7
    for each in (images, nearly):
        found = [own_image_rank(text, each, own) for text, own in zip(captions, [0, 4, 1, 1])]
        assert found == [2, 1, 4, 2]
