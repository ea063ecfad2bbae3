"""Items: captions cleaned, images augmented by seed, epoch and index, and replacements."""

from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from captioning.data import dataset as dataset_module
from captioning.data.annotations import Sample
from captioning.data.augmentation import training_transform
from captioning.data.dataset import EvaluationDataset, TrainingDataset, preprocess_caption
from captioning.runtime.errors import UserError
from tests.captioning.data.conftest import assert_same_batches
from tests.programs import raises_line


def to_tensor(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float()


def make_training(samples, folder, transform=None, seed=0, **settings):
    return TrainingDataset(samples, folder, transform or training_transform(8), seed, **settings)


def test_indices_are_pairs_in_file_order(photos, samples):
    dataset = make_training(samples, photos, to_tensor)
    items = [dataset[0, index] for index in range(len(dataset))]
    pairs = [(sample.image_id, [caption]) for sample in samples for caption in sample.captions]
    assert [(item["image_id"], item["captions"]) for item in items] == pairs and len(pairs) == 19
    for index, item in enumerate(items):
        assert item["index"] == index
        with Image.open(photos / f"{item['image_id'] - 100}.png") as image:
            assert torch.equal(item["image"], to_tensor(image))


def test_several_captions_are_drawn_without_replacement(photos, samples):
    dataset = make_training(samples, photos, captions_per_image=2)
    drawn = Counter(tuple(dataset[epoch, 2]["captions"]) for epoch in range(200))
    assert len(drawn) == 6 and min(drawn.values()) > 15  # every ordered pair of the three captions
    assert len(dataset) == 10 and all(first != second for first, second in drawn)
    dataset = make_training(samples, photos, captions_per_image=5)  # more than there are
    assert all(set(dataset[n, 2]["captions"]) == set(samples[2].captions) for n in range(20))
    assert len(dataset[0, 2]["captions"]) == 5


def test_unreadable_image_is_replaced_by_the_same_one_each_time(photos, samples, monkeypatch):
    (photos / "4.png").write_bytes(b"")
    (photos / "5.png").unlink()
    settings = {"captions_per_image": 2, "skip_bad_images": True}
    dataset, again = (make_training(samples, photos, **settings) for _ in range(2))
    for bad in (4, 5):
        item = dataset[0, bad]
        assert item["index"] not in (4, 5) and item["image_id"] == 100 + item["index"]
        assert all(caption.endswith(f"of {item['index']}") for caption in item["captions"])
        assert f"{bad}.png" in item["unreadable"][0]
        assert_same_batches([again[0, bad]], [item])
        assert dataset[1, bad]["index"] == item["index"]
    assert dataset[0, 3]["unreadable"] == []
    strict = make_training(samples, photos, captions_per_image=2)
    for dataset, key in ((strict, (0, 4)), (EvaluationDataset(samples, photos, None), 4)):
        with raises_line(UserError, "replace the file, or set skip_bad_images=true"):
            dataset[key]
    monkeypatch.setattr(dataset_module, "MAX_REPLACEMENTS", 3)
    dataset = make_training(samples, photos / "none", **settings)
    with pytest.raises(UserError, match=r"0\.png: no such image.*none of 3 replacements"):
        dataset[0, 0]


@pytest.mark.parametrize("augmentation", ["none", "weak", "blip"])
def test_photos_are_upright_or_as_stored(tmp_path, augmentation):
    exif, stored = Image.Exif(), Image.new("RGB", (80, 40))
    exif[0x0112] = 6  # the left side is the top
    stored.paste("white", (0, 0, 20, 40))
    stored.save(tmp_path / "0.jpg", exif=exif, quality=100)
    stored.transpose(Image.Transpose.ROTATE_270).save(tmp_path / "1.jpg", quality=100)
    stored.save(tmp_path / "2.jpg", quality=100)
    samples = [Sample(f"{number}.jpg", ("a",), number) for number in range(3)]

    def images(number, exif):
        transform = training_transform(16, augmentation, 0.0, exif)
        dataset = make_training(samples[number : number + 1], tmp_path, transform)
        return torch.stack([dataset[epoch, 0]["image"].float() for epoch in range(8)])

    # A turned JPEG is not decoded at a fraction of its size.
    assert (images(0, True) - images(1, True)).abs().mean() < 8
    assert torch.equal(images(0, False), images(2, False))
    for exif, size in ((True, (40, 80)), (False, (80, 40))):
        dataset = EvaluationDataset(samples, tmp_path, lambda image: image.size, exif=exif)
        assert dataset[0]["image"] == size


CLEANED = {
    "A cat.": "A cat",
    "  Two DOGS  ": "Two DOGS",
    'He said: "Stop!"': "He said Stop",
    "a (small) dog #1 * ; ~x": "a small dog 1 x",
    "black-and-white, isn't it?": "black-and-white, isn't it?",
    "A dog.\n": "A dog",
    "a\t\tdog": "a dog",
    "a\tdog": "a\tdog",  # a lone tab is not a run: BLIP leaves it
    "...": "",
}


def test_captions_are_cleaned_and_cut_as_in_blip_and_prompts_are_given_to_the_transform(
    photos, samples
):
    assert {text: preprocess_caption(text) for text in CLEANED} == CLEANED
    assert preprocess_caption("w " * 40).split() == ["w"] * 30
    samples = [samples[0]._replace(captions=("A dog, a (big) CAT.",), prompt="why?")]
    takes_prompt = {"transform": lambda image, prompt: prompt, "takes_prompt": True}
    item = make_training(samples, photos, **takes_prompt, max_words=4)[0, 0]
    assert (item["captions"], item["image"]) == (["A dog, a big"], "why?")
    assert EvaluationDataset(samples, photos, **takes_prompt)[0]["image"] == "why?"
