"""TRL's arguments in, what the reward says of the same captions out."""

import pytest

from captioning.rewards.interface import Sampled, TrainingImages
from captioning.rewards.registry import REWARDS
from captioning.rewards.trl import reward_function
from captioning.runtime.errors import UserError
from captioning.runtime.registry import load

END = 7
TEXTS = ("a cat on the sand", "two dogs")


@pytest.fixture
def known(photos, scenes, clip_folder, itm_checkpoint):
    files = dict(zip([0, 1], photos))
    options = {"facts_file": str(scenes / "scenes.json"), "clip_model": str(clip_folder)}
    images = TrainingImages({0: ["a cat"], 1: ["two dogs play", "dogs"]}, files, "cpu")
    return images, {**options, "itm_model": str(itm_checkpoint)}


@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.parametrize("chat", [False, True])
def test_every_reward_is_a_function_of_trl(name, chat, known):
    images, options = known
    kind = load(REWARDS[name])
    options = {key: options[key] for key in kind.Options.model_fields}
    reward = reward_function(name, images, [END], **options)
    completions = [f" {text} " for text in TEXTS]
    if chat:
        completions = [[{"role": "assistant", "content": text}] for text in completions]
    found = reward(
        prompts=["", ""],
        completions=completions,
        completion_ids=[[3, END], [3, 4]],
        image_id=[1, 0],
        trainer_state=None,
    )
    sampled = [[Sampled(TEXTS[0], True)], [Sampled(TEXTS[1], False)]]
    assert found == pytest.approx(kind(images, **options)([1, 0], sampled)[:, 0].tolist())
    assert all(type(value) is float for value in found) and reward.__name__ == name


@pytest.mark.parametrize(
    ("name", "columns", "line"),
    [
        ("facts", {}, "reward: facts needs facts_file"),
        ("cider", {}, "image_id of a row is None, which is no image"),
        ("cider", {"image_id": [5]}, "image_id of a row is 5, which is no image"),
    ],
)
def test_mistakes_are_one_line(name, columns, line, photos):
    with pytest.raises(UserError, match=line):
        images = TrainingImages({0: ["a cat"]}, {0: photos[0]}, "cpu")
        reward = reward_function(name, images, [END])
        reward(completions=["a"], completion_ids=[[END]], **columns)
