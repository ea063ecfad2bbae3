"""Self-retrieval, perplexity, image-text matching, and which file an image id stands for."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import GPT2LMHeadModel

from BLIP.itm import load_itm
from captioning.data.image import evaluation_transform
from captioning.metrics.base import Settings
from captioning.metrics.clip import Clip
from captioning.metrics.image_files import find_images
from captioning.metrics.intervals import mean_estimate
from captioning.metrics.pretrained import load_pretrained
from captioning.metrics.retrieval import own_image_rank
from captioning.runtime.errors import UserError
from tests.captioning.metrics.conftest import scored
from tests.programs import raises_line

PREDICTIONS = {7: "the cat", "b": "a dog and the ball", 3: "", 9: "the dog's cat and"}


def test_images_are_ranked_among_the_captions_own_and_a_pool(clip_folder, photos, tmp_path):
    """The pool has eight images in a folder, a list, or features: six more, and two photos."""
    settings = Settings(dict(zip(PREDICTIONS, photos)), cache_dir=tmp_path / "cache")

    def retrieve(pool=None):
        options = {"clip_model": str(clip_folder), "pool": pool and str(tmp_path / pool)}
        return scored("retrieval", PREDICTIONS, None, settings, **options)

    def naive_ranks(files):  # the captions' own images come first
        images = [clip.image_features(clip.read_image(path)[None])[0].double() for path in files]
        ranks = []
        for number, caption in enumerate(PREDICTIONS.values()):
            text = clip.text_features([caption])[0].double()
            similar = [(text @ image).item() for image in images]
            ranks.append(sum(value >= similar[number] for value in similar))
        return ranks

    clip = Clip(str(clip_folder))
    expected = naive_ranks(photos)
    result = retrieve()
    assert result.per_caption["rank"] == expected and len(set(expected)) > 1
    for k in (1, 5, 10):
        assert result.per_caption[f"R@{k}"] == [100.0 * (rank <= k) for rank in expected]
        assert result.metrics[f"R@{k}"] == mean_estimate(result.per_caption[f"R@{k}"])
    assert result.metrics["median_rank"].value == np.median(expected)
    assert result.settings["pool"] == "4 images (the captions' own)"

    (tmp_path / "pool" / "within").mkdir(parents=True)
    (tmp_path / "pool" / "notes.txt").write_text("no image")
    # Two of the pool have one name, and one that of a photo of the captions.
    names = ("a", "within/a", "photo_002", "b", "c", "d")
    others = [tmp_path / "pool" / f"{name}.png" for name in names]
    for number, path in enumerate(others):
        coarse = np.random.default_rng(50 + number).integers(0, 255, (3, 3, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((30 + number, 40), Image.BICUBIC).save(path)
    for photo in photos[:2]:
        shutil.copy(photo, tmp_path / "pool" / "within")
    listed = [str(path.relative_to(tmp_path)) for path in (tmp_path / "pool").rglob("*.png")]
    (tmp_path / "list.txt").write_text("\n".join(listed) + "\n\n")
    rows = [{"image": name, "caption": text} for name in listed for text in ("one", "two")]
    (tmp_path / "split.json").write_text(json.dumps(rows))
    features = clip.image_features(torch.stack([*map(clip.read_image, [*others, photos[2]])]))
    names = [*map(str, others), photos[2].name]
    np.savez(tmp_path / "features.npz", features=3 * features.numpy().astype(float), files=names)
    among = naive_ranks([*photos, *others])
    assert among != expected
    for pool in ("list.txt", "split.json", "features.npz", "pool"):
        result = retrieve(pool)
        assert result.per_caption["rank"] == among, pool
        assert result.settings["pool"] == f"10 images ({tmp_path / pool})"
    cached = (path for path in (tmp_path / "cache").iterdir() if len(np.load(path)["files"]) == 8)
    assert retrieve(next(cached)).metrics == result.metrics


def test_ties_count_against_the_caption():
    images = np.array([[1, 0], [0.6, 0.8], [1, 0], [0.6, 0.8], [0, 1]], dtype=np.float32)
    captions = np.array([[1, 0], [0, 1], [1, 0], [0.6, 0.8]], dtype=np.float32)
    nearly = images.copy()  # of equal images, the later one's similarity is lower by rounding
    nearly[2:4] *= 1 - 2e-7
    for each in (images, nearly):
        found = [own_image_rank(text, each, own) for text, own in zip(captions, [0, 4, 1, 1])]
        assert found == [2, 1, 4, 2]


def test_perplexity_is_that_of_the_definition(gpt2_folder):
    model = GPT2LMHeadModel.from_pretrained(str(gpt2_folder)).double().eval()
    _, tokenizer = load_pretrained("ppl_model", str(gpt2_folder), "AutoModelForCausalLM")

    def naive(text):
        end = model.config.vocab_size - 1  # <|endoftext|>
        ids = [end, *tokenizer(text).input_ids][:48]
        logits = [model(torch.tensor([ids[:n]])).logits[0, -1] for n in range(1, len(ids))]
        losses = [-torch.log_softmax(each, 0)[i] for each, i in zip(logits, ids[1:])]
        return torch.stack(losses).mean().exp().item()

    texts = ["the cat and the dog", "x", "", " \n", "the " * 20, "a 😀 !", "the cat " * 40]
    options = {"settings": Settings(batch_size=3), "ppl_model": str(gpt2_folder)}
    result = scored("perplexity", dict(enumerate(texts)), **options)
    values = result.per_caption["PPL"]
    assert [values.pop(2), values.pop(2)] == [None, None]
    known = [naive(text) for text in texts if text.strip()]
    assert values == pytest.approx(known, rel=1e-5) and max(known) > 1.5 * min(known)
    assert result.metrics == {"PPL": mean_estimate(values)}
    assert result.settings == {"ppl_model": str(gpt2_folder), "ppl_truncated": 1, "ppl_empty": 2}
    result = scored("perplexity", {1: "", 2: " "}, **options)
    assert result.skipped == {"PPL": "no caption has a word"} and not result.metrics


def test_itm_and_itc_of_each_image(itm_checkpoint, photos):
    captions, path = {**PREDICTIONS, 7: "a dog " * 20}, str(itm_checkpoint)
    settings = Settings(dict(zip(captions, photos)), batch_size=3)
    result = scored("itm", captions, None, settings, itm_model=path)
    model, _ = load_itm(path)
    expected = []
    for photo, caption in zip(photos, captions.values()):
        encoded = model.encode(evaluation_transform(48)(Image.open(photo).convert("RGB"))[None])
        heads = model.match(encoded, [[caption]]), model.similarity(encoded, [[caption]])
        expected.append([100 * head.item() for head in heads])
    for name, column in zip(("ITM", "ITC"), zip(*expected)):
        assert result.per_caption[name] == pytest.approx(list(column), abs=1e-3)
        assert result.metrics[name] == mean_estimate(result.per_caption[name])
    assert result.settings == {"itm_model": path, "itm_truncated": 1}


COCO, SEVEN = "val/COCO_val2014_000000000042.jpg", "val/000000000007.PNG"
ANNOTATED = [{"image": "cat.jpg", "caption": "a", "image_id": 42}]
NAMED = {"images": [{"id": 42, "file_name": "cat.jpg"}], "annotations": []}


def test_an_image_id_stands_for_one_file(tmp_path):
    """Its annotation says which, else its name; a mapping is relative to its folder."""
    (tmp_path / "images" / "val").mkdir(parents=True)
    for name in (COCO, SEVEN, "cat.jpg", "cat.txt"):
        (tmp_path / "images" / name).touch()
    (tmp_path / "files.json").write_text('{"1": "images/cat.jpg", "2": "absent.jpg"}')
    (tmp_path / "empty.json").write_text("[]")

    def find(source, ids, annotations=None):
        path = tmp_path / "references.json"
        path.write_text(json.dumps(annotations or {"42": ["a"]}))
        found = find_images(tmp_path / source, path, ids)
        return {i: file.relative_to(tmp_path / "images").as_posix() for i, file in found.items()}

    for source, annotations, expected in (
        ("images", None, {42: COCO, "7": SEVEN, "cat": "cat.jpg", SEVEN: SEVEN}),
        ("images", ANNOTATED, {42: "cat.jpg", 7: SEVEN}),
        ("images", NAMED, {"42": "cat.jpg"}),
        ("files.json", None, {1: "cat.jpg"}),
    ):
        assert find(source, list(expected), annotations) == expected
    (tmp_path / "images" / "COCO_train2014_000000000042.jpg").touch()
    for ids, source, line in (
        ([1, 2], "files.json", "image_id 2: found no image file for it in .*files.json"),
        ([1], "empty.json", "expected {image id: image file}"),
        ([8], "images", "image_id 8: found no image file for it in"),
        ([42], "images", "image_id 42 may be .*train2014.* or .*val2014.*: give"),
    ):
        with raises_line(UserError) as error:
            find(source, ids)
        assert re.search(line, str(error.value))
