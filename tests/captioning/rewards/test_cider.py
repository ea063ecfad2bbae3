"""CIDEr-D as a reward against pycocoevalcap's Cider, whose corpus is the training set."""

import json

import numpy as np
import pytest

from captioning.data import read_annotations
from captioning.data.dataset import preprocess_caption
from captioning.metrics.tokenizer import imitated, tokenize
from captioning.rewards.cider import END, CiderD
from captioning.rewards.interface import Sampled, TrainingImages

CAPTIONS = {
    1: ["A man rides a horse.", "A man on a brown horse, riding.", "The rider's horse"],
    2: ["A cat sits on a mat.", "a cat, sitting"],
    "three": ["Two dogs run on the grass.", "Dogs are running on grass in a park."],
    4: ["A man with a dog on the grass", "a man walks his dog"],
}
DRAWN = {
    1: ["a man on a horse", "horse horse horse a man", "a man rides a horse ."],
    2: ["a cat sits on a mat", "zebra", ""],
    "three": ["two dogs run on the grass with a", "a man", "dogs are running on grass"],
    4: ["a man with a dog with a dog with a dog", "the", "a man's dog"],
}


def reward(captions):
    return CiderD(TrainingImages(captions, {}, "cpu"))


def of_pycocoevalcap(references, drawn):
    """Cider of each caption; references, drawn: tokens joined by spaces, END among them."""
    from pycocoevalcap.cider.cider import Cider

    # One caption of each image a time: the images of the corpus are those that are scored.
    columns = zip(*drawn.values())
    values = [
        Cider().compute_score(references, {i: [text] for i, text in zip(drawn, column)})[1]
        for column in columns
    ]
    return np.array(values).T


def with_end(groups, ended=True):
    return {i: [f"{text} {END}" if ended else text for text in g] for i, g in groups.items()}


@pytest.mark.parametrize("ended", [True, False])
def test_the_reward_is_that_of_pycocoevalcap(ended):
    pytest.importorskip("pycocoevalcap")
    references, _ = tokenize(CAPTIONS)
    drawn, _ = tokenize(DRAWN)
    found = reward(CAPTIONS)([*DRAWN], [[Sampled(t, ended) for t in g] for g in DRAWN.values()])
    expected = of_pycocoevalcap(with_end(references), with_end(drawn, ended))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert found.max() > 3 and found[1, 1] < 0.1


def test_a_caption_that_is_cut_off_is_worth_less():
    whole, cut = reward(CAPTIONS)(
        [1], [[Sampled("a man rides a horse", end) for end in (True, False)]]
    )[0]
    assert whole > cut + 0.5


def test_on_real_captions_it_is_that_of_pycocoevalcap(shared_data):
    """Each image's first caption as if it were drawn, as the captioner is trained to say it."""
    pytest.importorskip("pycocoevalcap")
    samples = read_annotations(shared_data / "karpathy" / "flickr30k_test.json")[:200]
    captions = {s.image_id: s.captions[1:] for s in samples}
    drawn = {s.image_id: [preprocess_caption(s.captions[0])] for s in samples}
    found = reward(captions)(
        [*drawn], [[Sampled(text, True) for text in g] for g in drawn.values()]
    )
    references, _ = tokenize(captions)
    expected = of_pycocoevalcap(with_end(references), with_end(tokenize(drawn)[0]))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_what_captioners_learn_to_say_has_the_tokens_of_the_metric(shared_data):
    """Of real captions, cleaned up for training: PTB's by Java, and the imitation's."""
    texts = []
    for path in sorted((shared_data / "karpathy").glob("*.json")):
        found = json.loads(path.read_text())
        rows = found["annotations"] if isinstance(found, dict) else found
        for row in rows:
            each = row.get("caption", [])
            texts += [each] if isinstance(each, str) else each
    cleaned = [preprocess_caption(text) for text in texts]
    tokens, name = tokenize({"all": cleaned})
    if name != "PTBTokenizer":
        pytest.skip(name)
    different = [t for t, own in zip(cleaned, tokens["all"]) if own.split() != imitated(t).split()]
    assert len(cleaned) > 50_000
    assert len(different) <= 1e-4 * len(cleaned), different[:5]
