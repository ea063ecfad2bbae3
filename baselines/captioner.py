"""A classic captioner: image encoder, recurrent decoder and words behind `forward`, `generate`."""

from typing import Optional

import torch
from torch import Tensor, nn

from baselines.decoder import RecurrentDecoder, RecurrentStep
from baselines.image_encoder import ImageEncoder
from decoding import DecodingSettings, Generated, draw_captions
from smile import Objective, ObjectiveOutput
from smile.captions import captions_an_image


class ClassicCaptioner(nn.Module):
    """RNN, LSTM, attention LSTM or Show, Attend and Tell, as its decoder is.

    tokenizer: a `baselines.Vocabulary`, or one of word pieces with the same methods. prompt: what
    every caption starts with, not scored in training and cut off in generation. max_tokens:
    training captions are cut to so many tokens, start and end included. attention_penalty: the
    weight of `unseen`, which asks that every place is looked at in the course of a caption. Raises
    ValueError for a prompt with a word that the tokenizer does not know.
    """

    def __init__(
        self,
        encoder: ImageEncoder,
        decoder: RecurrentDecoder,
        tokenizer,
        objective: Objective,
        prompt: str = "",
        max_tokens: int = 40,
        attention_penalty: float = 0.0,
    ):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.tokenizer = tokenizer
        self.objective = objective
        self.prompt = prompt
        self.prompt_ids = tokenizer.encode_prompt(prompt)  # (p,)
        if tokenizer.unknown in self.prompt_ids:
            raise ValueError(f"prompt: the vocabulary lacks a word of {prompt!r}")
        self.max_tokens = max_tokens
        self.attention_penalty = attention_penalty
        self._unsaid = torch.tensor([tokenizer.pad, tokenizer.start, tokenizer.unknown])

    def forward(self, image: Tensor, captions: list[list[str]]) -> ObjectiveOutput:
        """The objective on k captions of each image, which is encoded once.

        image: (B, 3, S, S), normalised; captions: B lists of k strings, without the prompt. Raises
        ValueError where their numbers differ.
        """
        logits, labels, attention = self._predict(image, captions)
        output = self.objective(logits, labels)
        if not self.attention_penalty:
            return output
        penalty = unseen(attention, labels != self.objective.ignore_index)
        return ObjectiveOutput(
            output.loss + self.attention_penalty * penalty,
            {**output.parts, "attention": penalty.detach()},
            output.tokens,
        )

    def predictions(self, image: Tensor, captions: list[list[str]]) -> tuple[Tensor, Tensor]:
        """Logits (R, N, V) and the labels (R, N) that they predict, R = B * k; see `forward`."""
        return self._predict(image, captions)[:2]

    def _predict(self, image: Tensor, captions: list[list[str]]) -> tuple[Tensor, Tensor, Tensor]:
        rows = (len(image), captions_an_image(captions, len(image)))
        texts = [self.prompt + caption for group in captions for caption in group]
        tokens, mask = (t.to(image.device) for t in self.tokenizer.encode(texts, self.max_tokens))
        given = len(self.prompt_ids)
        labels = tokens.masked_fill(mask == 0, self.objective.ignore_index)[:, given:]
        read = tokens[:, :-1].unflatten(0, rows)  # (B, k, n)
        logits, attention = self.decoder(read, self.encoder(image), given)
        attention = None if attention is None else attention.flatten(0, 1)
        return logits.flatten(0, 1), labels, attention

    @torch.inference_mode()
    def generate_details(self, image: Tensor, settings: DecodingSettings) -> Generated:
        """Captions of images (B, 3, S, S) with their token ids and scores."""
        step = RecurrentStep(self.decoder, self.encoder(image), self._unsaid)
        return draw_captions(step, self.prompt_ids, image, self.tokenizer, settings, self._caption)

    def generate(self, image: Tensor, settings: DecodingSettings) -> list[str]:
        """The best caption of each image (B, 3, S, S)."""
        return [captions[0] for captions in self.generate_details(image, settings).captions]

    def _caption(self, ids: Tensor) -> str:
        return self.tokenizer.decode(ids[len(self.prompt_ids) :])

    @torch.inference_mode()
    def reread(self, annotations: Tensor, ids: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        """What it makes of an image's annotations (1, P, D) before each of the ids (n,) it said.

        Returns logits (n - p, V) of those after the prompt and, for a captioner that looks at the
        image again and again, where it looks: (n - p, P), rows that sum to 1.
        """
        logits, attention = self.decoder(ids[None, None, :-1], annotations, len(self.prompt_ids))
        logits = logits[0, 0].index_fill(-1, self._unsaid.to(logits.device), float("-inf"))
        return logits, None if attention is None else attention[0, 0]


def unseen(attention: Tensor, labelled: Tensor) -> Tensor:
    """The mean over places of (1 - sum over time of the attention) ** 2, a mean over tokens.

    attention: (R, N, P); labelled: bool (R, N), the positions that count. The doubly stochastic
    term of Show, Attend and Tell (arXiv 1502.03044, equation 14), a mean in place of the sum. A
    caption counts by its tokens, as in the loss beside it: so the mean over several batches, or
    processes, weighted by their tokens, is that of all their captions together.
    """
    seen = (attention * labelled.unsqueeze(2)).sum(1)  # (R, P)
    tokens = labelled.sum(1)  # (R,)
    return ((1 - seen).square().mean(1) * tokens).sum() / tokens.sum().clamp(min=1)
