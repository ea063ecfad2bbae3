"""The COCO metrics against their formulas written out, and against the published example."""

import importlib.util
import json
import math
from collections import Counter

import pytest

from captioning.metrics import coco
from captioning.metrics.bootstrap import Estimate
from captioning.metrics.coco import Coco
from captioning.metrics.evaluator import CaptionSet
from captioning.metrics.java import JavaError

PREDICTIONS = {
    1: "a man rides a brown horse on the beach",
    "two": "the the the cat",
    3: "a dog with a red ball runs over the green grass",
    "3": "",
}
REFERENCES = {
    1: ["a man is riding a horse on the beach", "a man rides a horse along the sea"],
    "two": ["the cat sleeps on the sofa", "a grey cat on a sofa", "the cat"],
    3: ["a dog runs over the green grass with a red ball in its mouth"],
    "3": ["two trains at a station", "a train"],
    "unused": ["nothing"],
}


def evaluate(predictions, references, **settings):
    return Coco(**settings).evaluate(CaptionSet(predictions, references))


def values(result):
    return {name: estimate.value for name, estimate in result.metrics.items()}


@pytest.fixture
def result(no_java):
    """Score the captions without Java: of words alone, the tokenisers agree."""
    return evaluate(PREDICTIONS, REFERENCES)


def ngrams(sentence, n):
    words = sentence.split()
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def bleu(pairs, order):
    """Papineni et al. 2002: clipped precisions, brevity by the closest reference's length."""
    log_precision, length, closest = 0.0, 0, 0
    for n in range(1, order + 1):
        matched = total = 0
        for caption, group in pairs:
            for gram, count in ngrams(caption, n).items():
                matched += min(count, max(ngrams(reference, n)[gram] for reference in group))
                total += count
        log_precision += math.log(matched / total) / order
    for caption, group in pairs:
        words = len(caption.split())
        length += words
        closest += min((abs(len(r.split()) - words), len(r.split())) for r in group)[1]
    return math.exp(log_precision + min(0.0, 1 - closest / length))


def rouge_l(caption, group):
    """Lin 2004: F of the longest common subsequence, beta 1.2, best precision and best recall."""

    def common(a, b):
        if not a or not b:
            return 0
        if a[0] == b[0]:
            return 1 + common(a[1:], b[1:])
        return max(common(a[1:], b), common(a, b[1:]))

    words = caption.split()
    lengths = [(common(words, r.split()), len(r.split())) for r in group]
    precision = max(length for length, _ in lengths) / len(words) if words else 0
    recall = max(length / count for length, count in lengths)
    if not precision:
        return 0
    return (1 + 1.2**2) * precision * recall / (recall + 1.2**2 * precision)


def cider_d(index, pairs):
    """Vedantam et al. 2015, eq. 4: CIDEr-D with sigma 6, n-grams of 1 to 4 words."""
    caption, group = pairs[index]

    def weights(sentence, n):
        vector = {}
        for gram, count in ngrams(sentence, n).items():
            images = sum(any(ngrams(r, n)[gram] for r in g) for _, g in pairs)
            vector[gram] = count * math.log(len(pairs) / max(1, images))
        return vector, math.sqrt(sum(value**2 for value in vector.values()))

    total = 0.0
    for n in range(1, 5):
        mine, norm = weights(caption, n)
        for reference in group:
            theirs, their_norm = weights(reference, n)
            dot = sum(min(value, theirs.get(g, 0)) * theirs.get(g, 0) for g, value in mine.items())
            # The code that papers use counts the length in pairs of words, and so does this.
            pairs_apart = max(0, len(caption.split()) - 1) - max(0, len(reference.split()) - 1)
            if norm * their_norm:
                total += dot / norm / their_norm * math.exp(-(pairs_apart**2) / 72) / len(group)
    return 10 * total / 4


PAIRS = [(PREDICTIONS[i], REFERENCES[i]) for i in PREDICTIONS]


def test_bleu_is_the_formula(result):
    for n in range(1, 5):
        assert values(result)[f"Bleu_{n}"] == pytest.approx(bleu(PAIRS, n), abs=1e-6)
    assert result.per_image["Bleu_2"][0] == pytest.approx(bleu(PAIRS[:1], 2), abs=1e-6)


def test_rouge_l_is_the_formula(result):
    expected = [rouge_l(*pair) for pair in PAIRS]
    assert result.per_image["ROUGE_L"] == pytest.approx(expected)
    assert values(result)["ROUGE_L"] == pytest.approx(sum(expected) / 4)


def test_cider_is_the_formula(result):
    expected = [cider_d(i, PAIRS) for i in range(4)]
    assert result.per_image["CIDEr"] == pytest.approx(expected)
    assert values(result)["CIDEr"] == pytest.approx(sum(expected) / 4)
    assert expected[0] > expected[1] > 0


def test_intervals_surround_the_values(result):
    for name, estimate in result.metrics.items():
        assert 0 <= estimate.low <= estimate.value <= estimate.high and estimate.n == 4, name
        assert estimate.low < estimate.high


def test_empty_caption_gets_nothing(no_java):
    # One reference has no word either, which pycocoevalcap's ROUGE-L takes for the same word.
    result = evaluate({1: "", 2: "a cat"}, {1: ["a dog", "!"], 2: ["a cat"]})
    assert {each[0] for each in result.per_image.values()} == {0.0}
    assert result.per_image["ROUGE_L"][1] == 1.0


def test_without_java(result):
    assert result.settings == {"tokenizer": "regex (no Java)"}
    assert list(result.skipped) == ["METEOR"] and "no `java` on PATH" in result.skipped["METEOR"]
    assert "METEOR" not in result.metrics
    assert Coco().unavailable() == result.skipped
    assert list(Coco(spice=True).unavailable()) == ["METEOR", "SPICE"]


def test_without_pycocoevalcap(monkeypatch, no_java):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = evaluate(PREDICTIONS, REFERENCES)
    assert result.metrics == {} and len(result.skipped) == 7
    assert set(result.skipped.values()) == {"pycocoevalcap is not installed"}


def test_a_failing_metric_loses_no_other(monkeypatch, java):
    def broken(*_):
        raise JavaError("Java ended with exit code 1: out of memory")

    monkeypatch.setattr(coco, "meteor_scores", broken)
    monkeypatch.setattr(coco, "_rouge", lambda *_: [1 / 0])
    result = evaluate(PREDICTIONS, REFERENCES)
    assert list(result.metrics) == ["Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "CIDEr"]
    assert result.skipped == {
        "METEOR": "Java ended with exit code 1: out of memory",
        "ROUGE_L": "ZeroDivisionError('division by zero')",
    }


def test_spice_is_computed_on_request(monkeypatch, no_java):
    monkeypatch.setattr(coco, "java_version", lambda: 8)
    monkeypatch.setattr(coco, "spice_problem", lambda java: None)
    nothing = Estimate(0.0, 0.0, 0.0, 4), [0.0] * 4
    monkeypatch.setattr(coco, "meteor_scores", lambda captions, _: nothing)
    asked = []

    def spice(captions, groups, *limits):
        asked.append(limits)
        return [len(caption) / 5 for caption in captions]

    monkeypatch.setattr(coco, "spice_scores", spice)
    assert "SPICE" not in evaluate(PREDICTIONS, REFERENCES).metrics
    result = evaluate(PREDICTIONS, REFERENCES, spice=True, spice_timeout=5.0, spice_heap="2G")
    assert asked == [(5.0, "2G")]
    expected = [len(caption) / 5.0 for caption in PREDICTIONS.values()]
    assert result.per_image["SPICE"] == expected
    assert values(result)["SPICE"] == pytest.approx(sum(expected) / 4)


def test_published_scores(java, shared_data, capfd):
    folder = shared_data / "coco-caption"
    results = json.loads((folder / "captions_val2014_fakecap_results.json").read_text())
    truth = json.loads((folder / "captions_val2014_fakecap_subset1000.json").read_text())
    references = {}
    for annotation in truth["annotations"]:
        references.setdefault(annotation["image_id"], []).append(annotation["caption"])
    result = evaluate({r["image_id"]: r["caption"] for r in results}, references)
    assert {name: round(value, 3) for name, value in values(result).items()} == {
        "Bleu_1": 0.579,
        "Bleu_2": 0.404,
        "Bleu_3": 0.279,
        "Bleu_4": 0.191,
        "METEOR": 0.195,
        "ROUGE_L": 0.396,
        "CIDEr": 0.600,
    }
    assert result.settings == {"tokenizer": "PTBTokenizer"} and result.skipped == {}
    assert {len(each) for each in result.per_image.values()} == {1000}
    for estimate in result.metrics.values():
        assert 0.01 < (estimate.high - estimate.low) / estimate.value < 0.2
        assert estimate.low < estimate.value < estimate.high
    assert capfd.readouterr() == ("", "")
