"""A minimal captioner package that is not part of the project."""

from typing import Annotated

import torch
from pydantic import BaseModel, Field
from torch import nn

from baselines import Vocabulary
from decoding import generate_captions, until_end

PROMPT_IS_QUESTION = False


class Keys(BaseModel):
    fake_width: Annotated[int, "run"] = Field(8, gt=0)


class FakeCaptioner(nn.Module):
    """Chooses a word by the image's mean colour and the previous word."""

    max_positions, min_batch_size, has_unused_parameters, null_image = None, 1, False, None

    def __init__(self, words, objective, prompt, width, max_tokens=40):
        super().__init__()
        self.tokenizer = Vocabulary(words)
        self.objective = objective.with_tokens(self.tokenizer.pad, self.tokenizer.end)
        self.prompt, self.prompt_ids = prompt, self.tokenizer.encode_prompt(prompt)
        self.max_tokens = max_tokens
        self.colour, self.head = nn.Linear(3, width), nn.Linear(width, len(self.tokenizer))
        self.word = nn.Embedding(len(self.tokenizer), width)

    def logits(self, tokens, encoded):  # (b, k, n), (b, width) -> (b, k, n, V)
        return self.head(torch.tanh(self.word(tokens) + encoded[:, None, None]))

    def sayable(self, logits):
        words = self.tokenizer
        unsaid = torch.tensor([words.pad, words.start, words.unknown])
        return logits.index_fill(-1, unsaid, float("-inf"))

    def encode(self, image):
        return self.colour(image.mean((2, 3)))

    def predictions(self, image, captions):
        texts = [self.prompt + text for group in captions for text in group]
        tokens, mask = self.tokenizer.encode(texts, self.max_tokens)
        logits = self.logits(tokens.unflatten(0, (len(image), -1)), self.encode(image))
        labels, p = tokens.masked_fill(mask == 0, -100), len(self.prompt_ids)
        return logits.flatten(0, 1)[:, p - 1 : -1], labels[:, p:]

    def forward(self, image, captions, dropped=None):
        return self.objective(*self.predictions(image, captions))

    def generate(self, image, settings):
        return [captions[0] for captions in self.generate_details(image, settings).captions]

    def generate_details(self, image, settings):
        return self.generate_from(self.encode(image), settings)

    def encode_null(self, encoded):
        raise NotImplementedError

    def generate_from(self, encoded, settings, other=None):
        images = encoded

        def step(tokens, rows):
            nonlocal images
            if rows is not None:
                images = images[rows[:, 0] // step.width]
            step.width = tokens.size(1)
            return self.sayable(self.logits(tokens[..., -1:], images)[:, :, 0])

        p = len(self.prompt_ids)
        return generate_captions(
            step, self.prompt_ids, encoded, self.tokenizer, settings, lambda ids: self.text(ids[p:])
        )

    def text(self, ids):
        return self.tokenizer.decode(ids)

    def score_tokens(self, encoded, ids):
        logits = self.logits(ids[None, None, :-1], encoded)[0, 0, len(self.prompt_ids) - 1 :]
        return self.sayable(logits), None

    def log_likelihoods(self, encoded, ids, temperature=1.0):
        p = len(self.prompt_ids)
        logits = self.sayable(self.logits(ids[..., :-1], encoded))[:, :, p - 1 :] / temperature
        said, end = ids[..., p:], self.tokenizer.end
        real = until_end(said, end)
        logprobs = logits.log_softmax(-1).gather(3, said.where(real, end).unsqueeze(3))
        return logprobs.squeeze(3).masked_fill(~real, 0)

    def for_inference(self, dtype, compiled):
        return self.eval()

    def compile_parts(self):
        pass

    def parameter_groups(self):
        return [(list(self.parameters()), None)]

    def shards(self):
        return []

    def begin_epoch(self, epoch):
        self.epochs_begun = epoch + 1

    def saved_beside_weights(self):
        return {"fake_words": self.tokenizer.words}


def build(config, context):
    words = context.content["fake_words"] if context.content else None
    words = words or Vocabulary.count(context.captions(), prompt=config.prompt).words
    objective = config.build_objective()
    return FakeCaptioner(words, objective, config.prompt, config.fake_width, config.max_tokens)


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

    return small, small, None
