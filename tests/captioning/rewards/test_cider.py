"""CIDEr-D as a reward against pycocoevalcap's Cider, whose corpus is the training set."""

import numpy as np
import pytest

from captioning.metrics.tokenizer import tokenize
from captioning.rewards.cider import END, CiderD
from captioning.rewards.interface import Sampled, TrainingImages

CAPTIONS = {
    1: ["A man rides a horse.", "A man on a brown horse, riding.", "The rider's horse"],
    2: ["A cat sits on a mat.", "a cat, sitting"],
    "three": ["Two dogs run on the grass.", "Dogs are running on grass in a park."],
    4: ["A man with a dog on the grass", "a man walks his dog"],
}
SAMPLED = {
    1: ["a man on a horse", "horse horse horse a man", "a man rides a horse ."],
    2: ["a cat sits on a mat", "zebra", ""],
    "three": ["two dogs run on the grass with a", "a man", "dogs are running on grass"],
    4: ["a man with a dog with a dog with a dog", "the", "a man's dog"],
}


def reward(captions):
    return CiderD(TrainingImages(captions, {}, "cpu"))


def of_pycocoevalcap(references, sampled):
    """Cider of each caption; references, sampled: tokens joined by spaces, END among them."""
    from pycocoevalcap.cider.cider import Cider

    # One caption of each image a time: the images of the corpus are those that are scored.
    columns = zip(*sampled.values())
    values = [
        Cider().compute_score(references, {i: [text] for i, text in zip(sampled, column)})[1]
        for column in columns
    ]
    return np.array(values).T


def with_end(groups, ended=True):
    return {i: [f"{text} {END}" if ended else text for text in g] for i, g in groups.items()}


@pytest.mark.parametrize("ended", [True, False])
def test_the_reward_is_that_of_pycocoevalcap(ended):
    pytest.importorskip("pycocoevalcap")
    references, _ = tokenize(CAPTIONS)
    sampled, _ = tokenize(SAMPLED)
    found = reward(CAPTIONS)([*SAMPLED], [[Sampled(t, ended) for t in g] for g in SAMPLED.values()])
    expected = of_pycocoevalcap(with_end(references), with_end(sampled, ended))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert found.max() > 3 and found[1, 1] < 0.1


def test_a_caption_that_is_cut_off_is_worth_less():
    whole, cut = reward(CAPTIONS)(
        [1], [[Sampled("a man rides a horse", end) for end in (True, False)]]
    )[0]
    assert whole > cut + 0.5
