"""Defines the classic captioner, which combines image encoder, recurrent decoder and tokenizer."""

import math
from typing import Any, Optional

import torch
from torch import Tensor, nn

from baselines.cells import AttentionLSTM, PooledDecoder, ShowAttendTell
from baselines.decoder import RecurrentStep, teacher_forcing
from baselines.image_encoder import ImageEncoder
from baselines.vocabulary import Vocabulary
from decoding import DecodingSettings, Step
from decoding.caption_generator import IGNORE, CaptionGenerator, Prompts
from smile import Objective, ObjectiveOutput

DECODERS = {
    "attn": AttentionLSTM,
    "sat": ShowAttendTell,
    "lstm": PooledDecoder,
    "rnn": PooledDecoder,
}


class ClassicCaptioner(CaptionGenerator):
    """A captioner with a decoder of `baselines.cells`.

    Implements `captioning.captioners.interface.Captioner`, which documents each method.

    - config: a run's configuration, with the keys of `baselines.configured.Keys`.
    - tokenizer: a `Vocabulary`, or a word-piece tokenizer with the same methods.

    Raises ValueError for a prompt with an unknown word.
    """

    max_positions = None

    def __init__(self, config: Any, encoder: ImageEncoder, tokenizer: Any, objective: Objective):
        super().__init__()
        self.config, self.encoder, self.tokenizer = config, encoder, tokenizer
        self.decoder = DECODERS[config.model](config, len(tokenizer), encoder.dim)
        self.objective = objective.with_tokens(tokenizer.pad, tokenizer.end)
        self.image_size, self.max_tokens = config.image_size, config.max_tokens
        self.prompt = config.prompt
        self.prompt_ids = tokenizer.encode_prompt(self.prompt)  # (p,)
        if tokenizer.unknown in self.prompt_ids:
            raise ValueError(
                f"prompt is {self.prompt!r}, but the vocabulary lacks one of its words"
            )
        excluded = torch.tensor([tokenizer.pad, tokenizer.start, tokenizer.unknown])
        self.register_buffer("excluded", excluded, persistent=False)  # ids that get probability 0

    def forward(
        self, image: Tensor, captions: list[list[str]], prompts: Prompts = None
    ) -> ObjectiveOutput:
        """Compute the objective on k captions of each image. Each image is encoded once.

        - image: (B, 3, S, S), normalised.
        - captions: B lists of k strings, without the prompt.
        - prompts: B prompts; None stands for the captioner's own prompt.

        Raises ValueError if there are not B lists of equal length.
        """
        logits, labels, attention = self._predict(image, captions, prompts)
        output = self.objective(logits, labels)
        weight = self.config.attention_penalty
        if not weight:
            return output
        penalty = coverage_penalty(attention, labels != IGNORE)
        return ObjectiveOutput(
            output.loss + weight * penalty,
            {**output.parts, "attention": penalty.detach()},
            output.tokens,
        )

    def predictions(
        self, image: Tensor, captions: list[list[str]], prompts: Prompts = None
    ) -> tuple[Tensor, Tensor]:
        """Return logits (R, N, V) and the labels (R, N) that they predict, R = B * k.

        `forward` documents the arguments. N is the number of positions after the shortest prompt.
        """
        return self._predict(image, captions, prompts)[:2]

    def _predict(
        self, image: Tensor, captions: list[list[str]], prompts: Prompts
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits (R, N, V), labels (R, N) and the attention (R, N, P) of the decoder."""
        tokens, labels, prompt_length = self.training_tokens(image, captions, prompts)
        logits, attention = self.decoder(tokens[:, :-1], self.encoder(image), prompt_length)
        return logits, labels[:, prompt_length:], attention

    def step_function(self, encoded: Tensor, settings: DecodingSettings) -> Step:
        return RecurrentStep(self.decoder, encoded, self.excluded)

    def encode(self, image: Tensor) -> Tensor:
        """Encode images (B, 3, S, S) -> annotations (B, P, D)."""
        return self.encoder(image)

    @torch.inference_mode()
    def score_tokens(self, encoded: Tensor, ids: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        """Score a caption's ids (n,) with teacher forcing, given the annotations (1, P, D).

        Returns the logits (n - p, V) that predict the ids after the p ids of the prompt, and the
        attention map (n - p, P). Each row of the map sums to 1. The map is None for a decoder
        without attention.
        """
        logits, attention = self._read(encoded, ids[None])
        return logits[0], attention[0] if attention.size(2) else None

    def caption_logits(self, encoded: Tensor, ids: Tensor) -> Tensor:
        return self._read(encoded, ids)[0]

    def _read(self, encoded: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (R, n - p, V), -inf for excluded ids, and the attention (R, n - p, P)."""
        logits, attention = self.decoder(ids[:, :-1], encoded, self.prompt_ids.size(-1))
        return logits.float().index_fill(-1, self.excluded, -math.inf), attention

    def compile_parts(self) -> None:
        """Compile the encoder and the objective.

        The decoder is not compiled, because it would be recompiled for every caption length.
        """
        self.encoder.compile()
        self.objective.compile()

    def parameter_groups(self) -> list[tuple[list[nn.Parameter], Optional[float]]]:
        rates = [
            (self.encoder.network, self.config.encoder_lr or None),  # 0: frozen
            (self.decoder.embedding, self.config.embedding_lr),
        ]
        groups = [(list(part.parameters()), rate) for part, rate in rates if rate is not None]
        grouped = {parameter for parameters, _ in groups for parameter in parameters}
        rest = [p for p in self.parameters() if p.requires_grad and p not in grouped]
        return [(rest, None), *groups]

    def shards(self) -> list[nn.Module]:
        return [self.encoder, self.decoder]

    def begin_epoch(self, epoch: int) -> None:
        self.decoder.teacher_forcing = teacher_forcing(self.config, epoch)

    def saved_beside_weights(self) -> dict[str, Any]:
        """Return {"vocabulary": words}, or {"files"} of a word-piece tokenizer."""
        if isinstance(self.tokenizer, Vocabulary):
            return {"vocabulary": self.tokenizer.words}
        return {"files": {"tokenizer": self.tokenizer.files}}


def coverage_penalty(attention: Tensor, is_scored: Tensor) -> Tensor:
    """Return the doubly stochastic term of Show, Attend and Tell (arXiv 1502.03044, equation 14).

    attention: (R, N, P). is_scored: bool (R, N), true where there is a label. The penalty of a
    caption is the mean over image positions of (1 - attention summed over time) ** 2. The paper
    takes the sum over image positions instead of the mean. As in the loss, each caption is weighted
    by its number of tokens, so that the result does not depend on how captions are distributed over
    batches and processes.
    """
    attention_sum = (attention * is_scored.unsqueeze(2)).sum(1)  # (R, P)
    tokens = is_scored.sum(1)  # (R,)
    return ((1 - attention_sum).square().mean(1) * tokens).sum() / tokens.sum().clamp(min=1)
