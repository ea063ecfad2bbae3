"""Rewards are what the metrics of their names say of single captions."""

import numpy as np
import pytest
import torch
from pycocoevalcap.cider.cider import Cider

from captioning.files.writing import write_json
from captioning.metrics.base import Settings
from captioning.metrics.options import checked_options
from captioning.metrics.tokenizer import tokenize
from captioning.rewards.cider import END, CiderD
from captioning.rewards.clipscore import ClipScoreReward
from captioning.rewards.facts import FactsReward
from captioning.rewards.interface import Sampled, TrainingImages
from captioning.rewards.itm import ItmReward
from captioning.rewards.trl import reward_function
from captioning.runtime.errors import UserError
from tests.captioning.metrics.conftest import scored
from tests.captioning.metrics.test_diversity import SCENES, STATED
from tests.programs import raises_line

pytestmark = pytest.mark.usefixtures("no_java")


def sampled(groups, ended=True):
    return [[Sampled(text, ended) for text in group] for group in groups]


def test_facts_are_true_less_wrong_ones_as_counted_by_hand(tmp_path):
    write_json({"made_from": {}, "scenes": SCENES}, tmp_path / "scenes.json")
    config = checked_options([FactsReward], facts_file=str(tmp_path / "scenes.json"))
    reward = FactsReward(TrainingImages({}, dict.fromkeys(SCENES), "cpu"), config)
    found = reward([2, 1, 3], sampled([[STATED[2], ""], ["a red star", ""], [STATED[3], ""]]))
    assert found.tolist() == [[3 - 1, 0], [1 - 1, 0], [1, 0]]


@pytest.mark.parametrize(
    ("reward", "evaluator", "name", "model", "fixture"),
    [
        (ClipScoreReward, "clipscore", "CLIPScore", "clip_model", "clip_folder"),
        (ItmReward, "itm", "ITM", "itm_model", "itm_checkpoint"),
    ],
)
def test_models_say_what_their_metrics_say(
    reward, evaluator, name, model, fixture, photos, tmp_path, request
):
    files = dict(zip([7, "b", 3, 9], photos))
    texts = ["the cat", "a dog and the ball", ""]
    options = {model: str(request.getfixturevalue(fixture))}
    compute = reward(TrainingImages({}, files, "cpu"), checked_options([reward], **options))
    asked = [9, 7, "b", 7]
    with torch.autocast("cpu", dtype=torch.bfloat16):  # which the models do not use
        found = compute(asked, sampled([texts] * 4))
    settings = Settings(images=files, cache_dir=tmp_path / "cache")
    for column, text in enumerate(texts):
        scores = scored(evaluator, dict.fromkeys(files, text), None, settings, **options)
        by_id = dict(zip(files, scores.per_caption[name]))
        expected = [by_id[i] / 100 for i in asked]
        np.testing.assert_allclose(found[:, column], expected, rtol=1e-4, atol=1e-6)
    assert np.ptp(found) > 0.01


@pytest.mark.parametrize("end", [f" {END}", ""])
def test_cider_is_that_of_pycocoevalcap(end):
    human = {
        1: ["A man rides a horse.", "A man on a brown horse, riding.", "The rider's horse"],
        2: ["A cat sits on a mat.", "a cat, sitting"],
        "three": ["Two dogs run on the grass.", "Dogs are running on grass in a park."],
        4: ["A man with a dog on the grass", "a man walks his dog"],
    }
    drawn = {
        1: ["a man on a horse", "horse horse horse a man", "a man rides a horse ."],
        2: ["a cat sits on a mat", "zebra", ""],
        "three": ["two dogs run on the grass with a", "a man", "dogs are running on grass"],
        4: ["a man with a dog with a dog with a dog", "the", "a man's dog"],
    }
    references, tokens = (tokenize(captions)[0] for captions in (human, drawn))
    references = {i: [f"{text} {END}" for text in group] for i, group in references.items()}
    reward = CiderD(TrainingImages(human, {}, "cpu"))
    found = reward([*drawn], sampled(drawn.values(), bool(end)))
    # One caption of each image a time: the images of the corpus are those that are scored.
    for values, column in zip(found.T, zip(*tokens.values())):
        captions = {i: [text + end] for i, text in zip(tokens, column)}
        expected = Cider().compute_score(references, captions)[1]
        np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-12)
    assert found.max() > 3 and found[1, 1] < 0.1


def test_a_reward_is_a_function_of_trl():
    images = TrainingImages({0: ["a cat"], 1: ["two dogs play", "dogs"]}, {0: "a", 1: "b"}, "cpu")
    reward, texts = reward_function("cider", images, [7]), ("dogs play", "a cat")
    completions = [f"<think>Dogs?</think> {text} " for text in texts]
    chats = [[{"role": "assistant", "content": text}] for text in completions]
    columns = {"completion_ids": [[3, 7], [3, 4]], "prompts": ["", ""], "trainer_state": None}
    ended = [[Sampled(texts[0], True)], [Sampled(texts[1], False)]]
    expected = CiderD(images)([1, 0], ended)[:, 0].tolist()
    for given in (completions, chats):
        assert reward(completions=given, image_id=[1, 0], **columns) == expected
    assert all(type(value) is float and value > 0 for value in expected)
    assert reward.__name__ == "cider"
    with raises_line(UserError, "image_id of a row is None, which is no image"):
        reward(completions=completions, **columns)
    with raises_line(UserError, "image_id of a row is 5, which is no image"):
        reward(completions=completions, image_id=[1, 5], **columns)
    with raises_line(UserError, "reward: facts needs facts_file"):
        reward_function("facts", images, [7])
