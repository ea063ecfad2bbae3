"""The simulated annotators: all true, and one says more than another."""

import random
from statistics import mean

from captioning.scenes.facts import describe_all, read_caption, true_facts
from captioning.scenes.world import random_scene


def captions_of(count):
    rng = random.Random(5)
    scenes = [random_scene(rng) for _ in range(count)]
    return [(scene, describe_all(scene, rng)) for scene in scenes]


def test_whatever_they_say_is_true():
    for scene, captions in captions_of(300):
        for caption in captions:
            statement = read_caption(caption)
            assert true_facts(statement, scene) == statement.facts(), (caption, scene)


def test_each_says_more_than_the_one_before():
    said = [captions for _, captions in captions_of(300)]
    for count in (lambda text: len(text.split()), lambda text: len(read_caption(text).facts())):
        by_annotator = [mean(count(captions[i]) for captions in said) for i in range(5)]
        assert by_annotator == sorted(by_annotator)
        assert by_annotator[-1] > 2.5 * by_annotator[0]


def test_vocabulary_is_rich():
    words = {
        word for _, captions in captions_of(1000) for text in captions for word in text.split()
    }
    assert len(words) >= 60
    # Of one property words that say more and words that say less.
    for specific, general in {"crimson": "red", "tiny": "small", "circle": "shape"}.items():
        assert {specific, general} <= words
