"""The COCO metrics against their formulas written out, and against the published example."""

import importlib.util
import json
import math
from collections import Counter

import pytest

from captioning.metrics import coco
from captioning.metrics.coco import coco_scores, unavailable_metrics
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


@pytest.fixture
def scores(no_java):
    """Score the captions without Java: of words alone, the tokenisers agree."""
    return coco_scores(PREDICTIONS, REFERENCES)


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


def test_bleu_is_the_formula(scores):
    for n in range(1, 5):
        assert scores.metrics[f"Bleu_{n}"] == pytest.approx(bleu(PAIRS, n), abs=1e-6)
    assert scores.per_image[1]["Bleu_2"] == pytest.approx(bleu(PAIRS[:1], 2), abs=1e-6)


def test_rouge_l_is_the_formula(scores):
    expected = [rouge_l(*pair) for pair in PAIRS]
    assert [values["ROUGE_L"] for values in scores.per_image.values()] == pytest.approx(expected)
    assert scores.metrics["ROUGE_L"] == pytest.approx(sum(expected) / 4)


def test_cider_is_the_formula(scores):
    expected = [cider_d(i, PAIRS) for i in range(4)]
    assert [values["CIDEr"] for values in scores.per_image.values()] == pytest.approx(expected)
    assert scores.metrics["CIDEr"] == pytest.approx(sum(expected) / 4)
    assert expected[0] > expected[1] > 0


def test_ids_of_both_kinds_are_kept_apart(scores):
    assert list(scores.per_image) == [1, "two", 3, "3"]


def test_empty_caption_gets_nothing(no_java):
    # One reference has no word either, which pycocoevalcap's ROUGE-L takes for the same word.
    scores = coco_scores({1: "", 2: "a cat"}, {1: ["a dog", "!"], 2: ["a cat"]})
    assert set(scores.per_image[1].values()) == {0.0}
    assert scores.per_image[2]["ROUGE_L"] == 1.0


def test_without_java(scores):
    assert scores.tokenizer == "regex (no Java)"
    assert list(scores.skipped) == ["METEOR"] and "no `java` on PATH" in scores.skipped["METEOR"]
    assert "METEOR" not in scores.metrics
    assert unavailable_metrics() == scores.skipped
    assert list(unavailable_metrics(spice=True)) == ["METEOR", "SPICE"]


def test_without_pycocoevalcap(monkeypatch, no_java):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    scores = coco_scores(PREDICTIONS, REFERENCES)
    assert scores.metrics == {} and len(scores.skipped) == 7
    assert set(scores.skipped.values()) == {"pycocoevalcap is not installed"}


def test_a_failing_metric_loses_no_other(monkeypatch, java):
    def broken(*_):
        raise JavaError("Java ended with exit code 1: out of memory")

    monkeypatch.setattr(coco, "meteor_scores", broken)
    monkeypatch.setattr(coco, "_rouge", lambda *_: [1 / 0])
    scores = coco_scores(PREDICTIONS, REFERENCES)
    assert list(scores.metrics) == ["Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "CIDEr"]
    assert scores.skipped == {
        "METEOR": "Java ended with exit code 1: out of memory",
        "ROUGE_L": "ZeroDivisionError('division by zero')",
    }


def test_spice_is_computed_on_request(monkeypatch, no_java):
    monkeypatch.setattr(coco, "java_version", lambda: 8)
    monkeypatch.setattr(coco, "spice_problem", lambda java: None)
    monkeypatch.setattr(coco, "meteor_scores", lambda captions, _: (0.0, [0.0] * len(captions)))
    monkeypatch.setattr(
        coco, "spice_scores", lambda captions, _, limit: (limit, [float(len(c)) for c in captions])
    )
    assert "SPICE" not in coco_scores(PREDICTIONS, REFERENCES).metrics
    scores = coco_scores(PREDICTIONS, REFERENCES, spice=True, spice_timeout=5.0)
    assert scores.metrics["SPICE"] == 5.0
    assert scores.per_image["two"]["SPICE"] == len("the the the cat")


def test_published_scores(java, shared_data, capfd):
    folder = shared_data / "coco-caption"
    results = json.loads((folder / "captions_val2014_fakecap_results.json").read_text())
    truth = json.loads((folder / "captions_val2014_fakecap_subset1000.json").read_text())
    references = {}
    for annotation in truth["annotations"]:
        references.setdefault(annotation["image_id"], []).append(annotation["caption"])
    scores = coco_scores({r["image_id"]: r["caption"] for r in results}, references)
    assert {name: round(value, 3) for name, value in scores.metrics.items()} == {
        "Bleu_1": 0.579,
        "Bleu_2": 0.404,
        "Bleu_3": 0.279,
        "Bleu_4": 0.191,
        "METEOR": 0.195,
        "ROUGE_L": 0.396,
        "CIDEr": 0.600,
    }
    assert scores.tokenizer == "PTBTokenizer" and scores.skipped == {}
    assert len(scores.per_image) == 1000 and all(len(v) == 7 for v in scores.per_image.values())
    assert capfd.readouterr() == ("", "")
