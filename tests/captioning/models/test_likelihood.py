"""The likelihood of human captions, and the temperature that makes it highest."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from baselines import ClassicCaptioner, ImageEncoder, Vocabulary
from captioning.config import load_config
from captioning.data.annotations import Sample
from captioning.data.image import evaluation_transform, load_image
from captioning.models.likelihood import TEMPERATURES, UNSCALED, likelihood, unigram_nll
from smile import smile_loss

CPU = torch.device("cpu")
CAPTIONS = [("a dog runs", "a cat"), ("a cat sits",), ("a dog sits", "a zebra")]


@pytest.fixture
def world(scenes_config, tmp_path):
    """Return (configuration, samples of three images with 2, 1 and 2 captions, captioner)."""
    samples = []
    for n, captions in enumerate(CAPTIONS):
        pixels = np.random.default_rng(n).integers(0, 255, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{n}.png")
        samples.append(Sample(f"{n}.png", captions, n))
    keys = ["image_size=32", "num_workers=0", "batch_size=2"]
    config = load_config(scenes_config, [f"image_root={tmp_path}", *keys])
    words = Vocabulary(["a", "dog", "cat", "runs", "sits"])
    captioner = ClassicCaptioner("sat", ImageEncoder("shufflenet_v2_x0_5"), words, embed_dim=16)
    with torch.no_grad():  # twice as sure of the frequent words as it has reason to be
        captioner.decoder.head.weight.mul_(0.1)
        counts = torch.tensor([0.01, 0.01, 5, 1, 5, 2, 2, 1, 2])
        captioner.decoder.head.bias.copy_(2 * counts.log())
    return config, samples, captioner.eval()


def test_means_over_all_tokens_and_the_best_temperature(world):
    config, samples, captioner = world
    found = likelihood(captioner, samples, config, CPU)
    transform = evaluation_transform(32)
    logits, labels, smile = [], [], 0.0
    with torch.no_grad():
        for sample in samples:
            image = transform(load_image(f"{config.image_root}/{sample.image}")).unsqueeze(0)
            for caption in sample.captions:  # alone, without padding
                rows, ids = captioner.predictions(image, [[caption]])
                logits.append(rows[0].double())
                labels.append(ids[0])
                smile += smile_loss(rows, ids, reduction="sum").item()
    logits, labels = torch.cat(logits), torch.cat(labels)
    assert found.tokens == len(labels) == 18
    assert found.smile == pytest.approx(smile / 18, rel=1e-5)
    assert found.nll[UNSCALED] == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)
    # The minimum by a search of its own.
    log_t = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([log_t], max_iter=100, line_search_fn="strong_wolfe")

    def loss():
        search.zero_grad()
        value = F.cross_entropy(logits / log_t.exp(), labels)
        value.backward()
        return value

    search.step(loss)
    expected = min(max(log_t.exp().item(), TEMPERATURES[0]), TEMPERATURES[-1])
    temperature, value = found.best
    assert TEMPERATURES[0] < expected < TEMPERATURES[-1]
    assert temperature == pytest.approx(expected, rel=5e-3)
    assert value == pytest.approx(loss().item(), rel=1e-4)


def test_the_unigram_model_counts_words_and_ends(world):
    config, samples, captioner = world
    found = unigram_nll(captioner, samples[:1], samples[1:2], config)
    # Training: a dog runs END, a cat END: 7 tokens, and one more of each of 9.
    counts = {"a": 2, "cat": 1, "sits": 0, "END": 2}
    expected = -sum(math.log((1 + n) / (7 + 9)) for n in counts.values()) / 4
    assert found == pytest.approx(expected)
