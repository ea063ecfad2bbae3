"""BLEU's sums are those of pycocoevalcap, also of images drawn more than once."""

import numpy as np
import pytest
from pycocoevalcap.bleu.bleu import Bleu

from captioning.metrics import coco
from captioning.metrics.coco import bleu_of_sums, bleu_scores

WORDS = ["a", "the", "man", "dog", "red", "ball", "runs", "on", "grass", "with", "big", "small"]


def sentences(random, longest):
    return " ".join(random.choice(WORDS, random.integers(0, longest)))


@pytest.fixture
def captions():
    random = np.random.default_rng(0)
    each = [sentences(random, 9) for _ in range(30)]
    return each, [[sentences(random, 14) for _ in range(1 + i % 4)] for i in range(30)]


def pycocoevalcap(captions, groups):
    by_index = dict(enumerate(groups)), {i: [caption] for i, caption in enumerate(captions)}
    return Bleu(4).compute_score(*by_index, verbose=0)


def test_values_are_pycocoevalcaps_own(captions):
    totals, each = pycocoevalcap(*captions)
    scored = bleu_scores(*captions)
    assert [estimate.value for estimate, _ in scored] == totals
    assert [scores for _, scores in scored] == each
    for estimate, _ in scored:
        assert estimate.low < estimate.value < estimate.high and estimate.n == 30


def test_sums_of_a_resample_score_as_its_captions_do(captions, monkeypatch):
    columns = []
    monkeypatch.setattr(coco, "intervals", lambda counts, _: columns.append(counts) or [(0, 0)] * 4)
    bleu_scores(*captions)
    random = np.random.default_rng(1)
    for size in (1, 2, 30, 100):  # a single image may have no match at all
        drawn = random.integers(30, size=size)
        totals, _ = pycocoevalcap(*([texts[i] for i in drawn] for texts in captions))
        sums = columns[0][drawn].sum(0, keepdims=True)
        assert bleu_of_sums(sums)[0] == pytest.approx(totals, rel=1e-12)
    assert bleu_of_sums(np.zeros((1, 10)))[0] == pytest.approx([0.0] * 4)
