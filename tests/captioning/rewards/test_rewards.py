"""Rewards are what the metrics of their names say of single captions."""

import os
import random
import signal
import sys
import time

import numpy as np
import pytest
import torch

from captioning.metrics.clipscore import ClipScore
from captioning.metrics.evaluator import CaptionSet, Settings
from captioning.metrics.facts import Facts
from captioning.metrics.itm import Itm
from captioning.rewards.clipscore import ClipScoreReward
from captioning.rewards.facts import FactsReward
from captioning.rewards.interface import Sampled, TrainingImages
from captioning.rewards.itm import ItmReward
from captioning.rewards.workers import Rewards
from captioning.scenes.facts import NOUNS, PLACES, describe_all
from captioning.scenes.make import read_scenes
from tests.captioning.conftest import is_running


def test_facts_are_those_of_the_metric(scenes):
    path = scenes / "scenes.json"
    known = read_scenes(path)
    rng = random.Random(1)
    drawn = {
        i: [*describe_all(scene, rng), " ".join(rng.choices([*NOUNS, *PLACES, "red"], k=8))]
        for i, scene in known.items()
    }
    reward = FactsReward(TrainingImages({}, dict.fromkeys(known), "cpu"), facts_file=str(path))
    found = reward([*drawn], [[Sampled(text, True) for text in group] for group in drawn.values()])
    wrong = 0
    for column in range(6):
        captions = CaptionSet({i: texts[column] for i, texts in drawn.items()}, {})
        of_metric = Facts(facts_file=str(path)).evaluate(captions).per_image
        for value, true, share in zip(
            found[:, column], *(of_metric[n] for n in ("true_facts", "wrong_facts"))
        ):
            stated = true / (1 - share / 100) if share not in (None, 100) else None
            if stated is not None:
                assert value == pytest.approx(true - stated * share / 100)
                wrong += share > 0
    assert wrong > 5


@pytest.mark.parametrize(
    ("reward", "evaluator", "name", "model"),
    [
        (ClipScoreReward, ClipScore, "CLIPScore", "clip_folder"),
        (ItmReward, Itm, "ITM", "itm_checkpoint"),
    ],
)
def test_models_say_what_their_metrics_say(
    reward, evaluator, name, model, photos, tmp_path, request
):
    files = dict(zip([7, "b", 3, 9], photos))
    texts = ["the cat", "a dog and the ball", ""]
    [option] = reward.Options.model_fields
    options = {option: str(request.getfixturevalue(model))}
    compute = reward(TrainingImages({}, files, "cpu"), **options)
    asked = [9, 7, "b", 7]
    with torch.autocast("cpu", dtype=torch.bfloat16):  # which the models do not use
        found = compute(asked, [[Sampled(text, True) for text in texts]] * 4)
    metric = evaluator(Settings(images=files, cache_dir=tmp_path / "cache"), **options)
    for column, text in enumerate(texts):
        captions = CaptionSet(dict.fromkeys(files, text), {image_id: ["a"] for image_id in files})
        by_id = dict(zip(files, metric.evaluate(captions).per_image[name]))
        expected = [by_id[i] / 100 for i in asked]
        np.testing.assert_allclose(found[:, column], expected, rtol=1e-4, atol=1e-6)
    assert np.ptp(found) > 0.01


class OfTheProcess:
    """Twice the length of a caption; tells which process it was asked in."""

    on_device = False

    def __init__(self, path):
        self.path = path

    def __call__(self, image_ids, captions):
        with open(self.path, "a") as file:
            file.write(f"{os.getpid()}\n" * len(image_ids))
        return np.array([[2.0 * len(s.text) for s in group] for group in captions])


@pytest.mark.parametrize("processes", [0, 1, 3])
def test_processes_share_the_images_of_a_batch(processes, tmp_path):
    rewards = Rewards({"own": OfTheProcess(tmp_path / "asked")}, processes)
    captions = [[Sampled("a" * i, True), Sampled("", False)] for i in range(7)]
    found = rewards.submit(list(range(7)), captions)()["own"]
    rewards.close()
    assert found.tolist() == [[2.0 * i, 0.0] for i in range(7)]
    asked = (tmp_path / "asked").read_text().split()
    assert len(asked) == 7 and (str(os.getpid()) in asked) == (processes == 0)


@pytest.mark.skipif(sys.platform != "linux", reason="as the promise is")
def test_processes_do_not_outlive_a_run_that_is_killed(tmp_path):
    path = tmp_path / "asked"
    run = os.fork()
    if run == 0:
        rewards = Rewards({"own": OfTheProcess(path)}, 1)
        rewards.submit([0], [[Sampled("a", True)]])()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(run, 0)
    worker = int(path.read_text())
    until = time.monotonic() + 100
    while is_running(worker) and time.monotonic() < until:
        time.sleep(0.05)
    left = is_running(worker)
    if left:
        os.kill(worker, signal.SIGKILL)
    assert not left
