"""Rewards are what the metrics of their names say of single captions."""

import random

import numpy as np
import pytest
import torch

from captioning.metrics.base import CaptionSet, Settings, build_evaluators
from captioning.metrics.facts import Facts
from captioning.metrics.options import checked_options
from captioning.metrics.tokenizer import tokenize
from captioning.rewards.cider import END, CiderD
from captioning.rewards.clipscore import ClipScoreReward
from captioning.rewards.facts import FactsReward
from captioning.rewards.interface import Sampled, TrainingImages
from captioning.rewards.itm import ItmReward
from captioning.rewards.registry import REWARDS
from captioning.rewards.trl import reward_function
from captioning.runtime.errors import UserError
from captioning.runtime.registry import load
from captioning.scenes.annotators import describe_all
from captioning.scenes.facts import NOUNS, PLACES
from captioning.scenes.world import read_scenes
from tests.programs import raises_line

pytestmark = pytest.mark.usefixtures("no_java")


def test_facts_are_those_of_the_metric(scenes):
    path = scenes / "scenes.json"
    known = read_scenes(path)
    rng = random.Random(1)
    drawn = {
        i: [*describe_all(scene, rng), " ".join(rng.choices([*NOUNS, *PLACES, "red"], k=8))]
        for i, scene in known.items()
    }
    config = checked_options([Facts], facts_file=str(path))
    reward = FactsReward(TrainingImages({}, dict.fromkeys(known), "cpu"), config)
    found = reward([*drawn], [[Sampled(text, True) for text in group] for group in drawn.values()])
    wrong = 0
    for column in range(6):
        captions = CaptionSet({i: texts[column] for i, texts in drawn.items()}, {})
        of_metric = Facts(config, Settings()).evaluate(captions).per_caption
        for value, true, share in zip(
            found[:, column], of_metric["true_facts"], of_metric["wrong_facts"]
        ):
            if share not in (None, 100):
                stated = true / (1 - share / 100)
                assert value == pytest.approx(true - stated * share / 100)
                wrong += share > 0
    assert wrong > 5


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
    config = checked_options([reward], **{model: str(request.getfixturevalue(fixture))})
    compute = reward(TrainingImages({}, files, "cpu"), config)
    asked = [9, 7, "b", 7]
    with torch.autocast("cpu", dtype=torch.bfloat16):  # which the models do not use
        found = compute(asked, [[Sampled(text, True) for text in texts]] * 4)
    settings = Settings(images=files, cache_dir=tmp_path / "cache")
    [metric] = build_evaluators([evaluator], settings, config)
    for column, text in enumerate(texts):
        captions = CaptionSet(dict.fromkeys(files, text), {image_id: ["a"] for image_id in files})
        by_id = dict(zip(files, metric.evaluate(captions).per_caption[name]))
        expected = [by_id[i] / 100 for i in asked]
        np.testing.assert_allclose(found[:, column], expected, rtol=1e-4, atol=1e-6)
    assert np.ptp(found) > 0.01


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


@pytest.mark.parametrize("end", [f" {END}", ""])
def test_the_reward_is_that_of_pycocoevalcap(end):
    cider = pytest.importorskip("pycocoevalcap.cider.cider")
    references, sampled = (tokenize(captions)[0] for captions in (CAPTIONS, SAMPLED))
    references = {i: [f"{text} {END}" for text in group] for i, group in references.items()}
    reward = CiderD(TrainingImages(CAPTIONS, {}, "cpu"))
    found = reward([*SAMPLED], [[Sampled(t, bool(end)) for t in g] for g in SAMPLED.values()])
    # One caption of each image a time: the images of the corpus are those that are scored.
    for values, column in zip(found.T, zip(*sampled.values())):
        captions = {i: [text + end] for i, text in zip(sampled, column)}
        expected = cider.Cider().compute_score(references, captions)[1]
        np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-12)
    assert found.max() > 3 and found[1, 1] < 0.1


EOS = 7
TEXTS = ("a cat on the sand", "two dogs")


@pytest.mark.parametrize(("name", "chat"), [*((name, False) for name in REWARDS), ("cider", True)])
def test_every_reward_is_a_function_of_trl(name, chat, photos, scenes, clip_folder, itm_checkpoint):
    files = dict(zip([0, 1], photos))
    images = TrainingImages({0: ["a cat"], 1: ["two dogs play", "dogs"]}, files, "cpu")
    options = {"facts_file": scenes / "scenes.json", "clip_model": clip_folder}
    options["itm_model"] = itm_checkpoint
    kind = load(REWARDS[name])
    options = {key: str(options[key]) for key in kind.options}
    reward = reward_function(name, images, [EOS], **options)
    completions = [f"<think>Dogs?</think> {text} " for text in TEXTS]
    if chat:
        completions = [[{"role": "assistant", "content": text}] for text in completions]
    found = reward(
        prompts=["", ""],
        completions=completions,
        completion_ids=[[3, EOS], [3, 4]],
        image_id=[1, 0],
        trainer_state=None,
    )
    sampled = [[Sampled(TEXTS[0], True)], [Sampled(TEXTS[1], False)]]
    assert found == pytest.approx(
        kind(images, checked_options([kind], **options))([1, 0], sampled)[:, 0].tolist()
    )
    assert all(type(value) is float for value in found) and reward.__name__ == name


@pytest.mark.parametrize(
    ("name", "columns", "line"),
    [
        ("facts", {}, "reward: facts needs facts_file"),
        ("cider", {}, "image_id of a row is None, which is no image"),
        ("cider", {"image_id": [5]}, "image_id of a row is 5, which is no image"),
    ],
)
def test_missing_options_and_unknown_images_of_a_reward_are_one_line(name, columns, line, photos):
    with raises_line(UserError, line):
        images = TrainingImages({0: ["a cat"]}, {0: photos[0]}, "cpu")
        reward = reward_function(name, images, [EOS])
        reward(completions=["a"], completion_ids=[[EOS]], **columns)
