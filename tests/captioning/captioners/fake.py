"""A minimal captioner package that is not part of the project.

It borrows the tokenizer of `baselines`, which a package of the project must not import.
"""

from typing import Annotated

import torch
from pydantic import BaseModel, Field
from torch import nn

from baselines.vocabulary import Vocabulary
from decoding.caption_generator import CaptionGenerator

PROMPT_IS_QUESTION = False


class Keys(BaseModel):
    fake_width: Annotated[int, "run"] = Field(8, gt=0)


class FakeCaptioner(CaptionGenerator):
    """Chooses a word by the image's mean colour and the previous word."""

    max_positions, image_size = None, 4

    def __init__(self, tokenizer, objective, prompt, width, max_tokens=40):
        super().__init__()
        self.tokenizer = tokenizer
        self.objective = objective.with_tokens(self.tokenizer.pad, self.tokenizer.end)
        self.prompt, self.prompt_ids = prompt, self.tokenizer.encode_prompt(prompt)
        self.max_tokens = max_tokens
        self.colour, self.head = nn.Linear(3, width), nn.Linear(width, len(self.tokenizer))
        self.word = nn.Embedding(len(self.tokenizer), width)

    def encode(self, image):
        return self.colour(image.mean((2, 3)))

    def logits(self, tokens, encoded):  # (b, k, n), (b, width) -> (b, k, n, V)
        return self.head(torch.tanh(self.word(tokens) + encoded[:, None, None]))

    def allowed_logits(self, tokens, encoded):
        words = self.tokenizer
        excluded = torch.tensor([words.pad, words.start, words.unknown])
        return self.logits(tokens, encoded).index_fill(-1, excluded, float("-inf"))

    def forward(self, image, captions, prompts=None):
        return self.objective(*self.predictions(image, captions, prompts))

    def predictions(self, image, captions, prompts=None):
        tokens, labels, p = self.training_tokens(image, captions, prompts)
        inputs = tokens[:, p - 1 : -1].unflatten(0, (len(image), -1))  # (B, k, N)
        return self.logits(inputs, self.encode(image)).flatten(0, 1), labels[:, p:]

    def step_function(self, encoded, settings):
        def step(tokens, rows):
            if rows is not None:
                step.images = step.images[rows[:, 0] // step.width]
            step.width = tokens.size(1)
            return self.allowed_logits(tokens[..., -1:], step.images)[:, :, 0]

        step.images = encoded
        return step

    def score_tokens(self, encoded, ids):
        return self.caption_logits(encoded, ids[None])[0], None

    def caption_logits(self, encoded, ids):
        ids = ids[:, self.prompt_ids.size(-1) - 1 : -1].unflatten(0, (len(encoded), -1))
        return self.allowed_logits(ids, encoded).flatten(0, 1)

    def compile_parts(self):
        pass

    def shards(self):
        return []

    def saved_beside_weights(self):
        return {"fake_words": self.tokenizer.words}


def build(config, context):
    objective, tokenizer = config.build_objective(), build_tokenizer(config, context)
    return FakeCaptioner(tokenizer, objective, config.prompt, config.fake_width, config.max_tokens)


def build_tokenizer(config, context):
    if context.content:
        return Vocabulary(context.content["fake_words"])
    return Vocabulary.count(context.captions(), prompt=config.prompt)


def origin(config):
    return "the weights are a fake's"


def title(config):
    return "Fake"


def check_device(config, device):
    if config.precision == "fp16":
        raise ValueError("precision is fp16, which a fake has not; try fp32")


def preprocessing(config):
    """Four by four pixels from 0 to 1, in training as in evaluation."""

    def small(image):
        pixels = image.convert("RGB").resize((4, 4)).tobytes()
        return torch.tensor(list(pixels)).view(4, 4, 3).permute(2, 0, 1) / 255

    return small, small
