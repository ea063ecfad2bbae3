"""The COCO metrics against pycocoevalcap and the published example, and SPICE by a stand-in."""

import json
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge

from captioning.data.caption_files import read_references
from captioning.metrics import coco
from captioning.metrics.base import build_evaluators
from captioning.metrics.coco import bleu_of_sums, bleu_scores
from tests.captioning.metrics.conftest import scored
from tests.programs import refused, run_program, unchanged

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


def evaluate(predictions=PREDICTIONS, references=REFERENCES, **options):
    return scored("coco", predictions, references, **options)


def unavailable(**options):
    [evaluator] = build_evaluators(["coco"], **options)
    return evaluator.unavailable()


def test_values_are_those_of_pycocoevalcap(no_java):
    result = evaluate()
    references = {i: REFERENCES[i] for i in PREDICTIONS}
    captions = {i: [text] for i, text in PREDICTIONS.items()}
    totals, each = Bleu(4).compute_score(references, captions, verbose=0)
    expected = {f"Bleu_{n + 1}": (totals[n], each[n]) for n in range(4)}
    expected["ROUGE_L"] = Rouge().compute_score(references, captions)
    expected["CIDEr"] = Cider().compute_score(references, captions)
    assert list(result.metrics) == list(expected)
    for name, (total, of_each) in expected.items():
        assert result.per_caption[name] == pytest.approx(list(of_each), abs=1e-12)
        estimate = result.metrics[name]
        assert estimate.value == pytest.approx(total, abs=1e-12)
        assert 0 <= estimate.low <= estimate.value <= estimate.high > estimate.low
    assert result.settings == {"tokenizer": "regex (no Java)"}
    assert list(result.skipped) == ["METEOR"] and "no `java` on PATH" in result.skipped["METEOR"]
    assert unavailable() == result.skipped
    assert list(unavailable(spice=True)) == ["METEOR", "SPICE"]
    # An empty caption gets nothing. One reference has no word either, which pycocoevalcap's ROUGE-L
    # takes for the same word.
    result = evaluate({1: "", 2: "a cat"}, {1: ["a dog", "!"], 2: ["a cat"]})
    assert {each[0] for each in result.per_caption.values()} == {0.0}
    assert result.per_caption["ROUGE_L"][1] == 1.0


def test_bleu_of_a_resample_is_that_of_its_captions():
    random = np.random.default_rng(0)
    words = ["a", "the", "man", "dog", "red", "ball", "runs", "on", "grass"]

    def sentence(longest):
        return " ".join(random.choice(words, random.integers(0, longest)))

    captions = [sentence(9) for _ in range(30)]
    groups = [[sentence(14) for _ in range(1 + i % 4)] for i in range(30)]
    with mock.patch.object(coco, "estimates", return_value=[]) as estimates:
        bleu_scores(captions, groups)
    rows, _ = estimates.call_args[0]
    for size in (1, 2, 30, 100):  # a single image may have no match at all
        drawn = random.integers(30, size=size)
        references = {i: groups[n] for i, n in enumerate(drawn)}
        resample = {i: [captions[n]] for i, n in enumerate(drawn)}
        totals, _ = Bleu(4).compute_score(references, resample, verbose=0)
        sums = rows[drawn].sum(0, keepdims=True)
        assert bleu_of_sums(sums)[0] == pytest.approx(totals, rel=1e-12)


def test_cider_with_the_weights_of_a_corpus(no_java, tmp_path):
    """Of one image, CIDEr is 0 by its own references. A corpus equal to the set changes nothing."""
    one = {1: PREDICTIONS[1]}
    assert evaluate(one).metrics["CIDEr"].value == 0
    captions = [
        {"image_id": i, "image": f"{i}.jpg", "caption": text}
        for i, group in enumerate(REFERENCES.values())
        for text in group
    ]
    train, path = tmp_path / "train.json", str(tmp_path / "df.json")
    train.write_text(json.dumps(captions))
    program = "captioning.metrics.cider_df"
    with unchanged(tmp_path):
        same = [train, "--out", f"{tmp_path}/./train.json"]
        refused(program, *same, part="the file of captions: name another")
    done = run_program(program, train, "--out", path)
    assert done.code == 0 and "5 images" in done.err
    found = evaluate(one, cider_df=path)
    everything = {i: PREDICTIONS.get(i, "") for i in REFERENCES}
    whole = evaluate(everything)
    assert found.per_caption["CIDEr"] == whole.per_caption["CIDEr"][:1] != [0.0]
    assert found.settings["cider_df"] == f"{path} (5 images)"
    assert evaluate(everything, cider_df=path).metrics["CIDEr"] == whole.metrics["CIDEr"]


@pytest.mark.slow
def test_the_published_example_has_its_published_scores(java, shared_data, capfd):
    folder = shared_data / "coco-caption"
    results = json.loads((folder / "captions_val2014_fakecap_results.json").read_text())
    references = read_references(folder / "captions_val2014_fakecap_subset1000.json")
    result = evaluate({r["image_id"]: r["caption"] for r in results}, references)
    assert {name: round(each.value, 3) for name, each in result.metrics.items()} == {
        **{"Bleu_1": 0.579, "Bleu_2": 0.404, "Bleu_3": 0.279, "Bleu_4": 0.191},
        **{"METEOR": 0.195, "ROUGE_L": 0.396, "CIDEr": 0.600},
    }
    assert result.settings == {"tokenizer": "PTBTokenizer"} and result.skipped == {}
    assert {len(each) for each in result.per_caption.values()} == {1000}
    for estimate in result.metrics.values():
        assert 0.01 < (estimate.high - estimate.low) / estimate.value < 0.2
    assert capfd.readouterr() == ("", "")


def test_spice_is_computed_on_request(fake_java, monkeypatch, tmp_path):
    """Java answers SPICE alone, in another order than asked."""
    answer = [{"image_id": i, "scores": {"All": {"f": f}}} for i, f in [(1, 0.5), (0, 0.25)]]
    (tmp_path / "answer.json").write_text(json.dumps(answer))
    script = f"""
    case "$*" in
    *-version) echo 'version "1.8.0"' >&2 ;;
    *spice*) shift 3; echo $1 > {tmp_path}/heap
        cp $4 {tmp_path}/asked.json; cp {tmp_path}/answer.json $6 ;;
    *) echo Error: out of memory >&2; exit 1 ;;
    esac"""
    fake_java(script)
    monkeypatch.setattr(coco, "jar", lambda name: str(tmp_path / Path(name).name))
    captions, references = {"x": "a café", "y": ""}, {"x": ["a", "b"], "y": ["c"]}
    assert "get_stanford_models" in evaluate(captions, references, spice=True).skipped["SPICE"]
    (tmp_path / "stanford-corenlp-3.6.0-models.jar").touch()
    result = evaluate(captions, references, spice=True, spice_heap="2G")
    assert result.per_caption["SPICE"] == [0.25, 0.5] and len(result.metrics) == 4 + 3
    assert result.skipped == {"METEOR": "Java ended with exit code 1: Error: out of memory"}
    assert (tmp_path / "heap").read_text() == "-Xmx2G\n"
    assert json.loads((tmp_path / "asked.json").read_text()) == [
        {"image_id": 0, "test": "a café", "refs": ["a", "b"]},
        {"image_id": 1, "test": "", "refs": ["c"]},
    ]
    fake_java(script.replace("*spice*)", "*spice*) sleep 20;"))
    result = evaluate(captions, references, spice=True, spice_timeout=0.5)
    assert result.skipped["SPICE"] == "Java gave no result within 0.5 s"
    fake_java(script.replace("1.8", "15"))
    assert unavailable(spice=True) == {"SPICE": "it needs Java 8 to 14, this is Java 15"}
