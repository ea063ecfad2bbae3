"""Adapts the rewards of `captioning.rewards` to TRL's GRPOTrainer and RLOOTrainer.

images = TrainingImages.from_samples(read_annotations("train.json"), "photos", "cuda")
rewards = [reward_function("cider", images, [tokenizer.eos_token_id])]
GRPOTrainer(model, rewards, train_dataset=rows_with_image_id, ...)
"""

from collections.abc import Collection
from typing import Any, Callable

from captioning.metrics.options import checked_options, missing_options
from captioning.rewards.interface import Sampled, TrainingImages
from captioning.rewards.registry import REWARDS
from captioning.runtime.errors import UserError
from captioning.runtime.registry import load
from decoding.thoughts import without_thoughts


def reward_function(
    name: str,
    images: TrainingImages,
    end_ids: Collection[int],
    config: Any = None,
    **options: Any,
) -> Callable[..., list[float]]:
    """Return a reward function, which TRL calls with completions and columns of the data set.

    - name: a key of REWARDS; TRL logs the rewards as rewards/NAME
    - images: the training images; the data set needs a column image_id with their ids
    - end_ids: the ids of the tokens that end a completion
    - config: has the options of the reward as attributes; by default made of `options`

    Raises UserError for missing or impossible options. The returned function raises UserError for a
    row whose image_id is not among `images`.
    """
    kind = load(REWARDS[name])
    config = config or checked_options([kind], **options)
    if problem := missing_options(kind, config):
        raise UserError(f"reward: {name} {problem}")
    compute = kind(images, config)

    def reward(completions, completion_ids, image_id=(None,), **columns) -> list[float]:
        for each in image_id:
            if each not in images.files:
                raise UserError(
                    f"reward {name}: image_id of a row is {each!r}, which is no image: give each "
                    "row of the data set the id of its image"
                )
        captions = []  # one list with one caption per row
        for text, ids in zip(completions, completion_ids):
            if not isinstance(text, str):  # a chat: take the model's message
                text = text[-1]["content"]
            caption = without_thoughts(text).strip()
            captions.append([Sampled(caption, bool(ids) and ids[-1] in end_ids)])
        return compute(image_id, captions)[:, 0].tolist()

    reward.__name__ = name
    return reward
