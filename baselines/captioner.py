"""Defines the classic captioner, which combines image encoder, recurrent decoder and tokenizer."""

from typing import Any, Optional

import torch
from torch import Tensor, nn

from baselines.cells import AttentionLSTM, PooledDecoder, ShowAttendTell
from baselines.decoder import RecurrentStep, teacher_forcing
from baselines.image_encoder import ImageEncoder
from baselines.vocabulary import Vocabulary, load_word_vectors
from decoding import DecodingSettings, Step, until_end
from decoding.caption_generator import (
    IGNORE,
    CaptionGenerator,
    Prompts,
    captions_per_image,
    training_tokens,
)
from smile import Objective, ObjectiveOutput


class ClassicCaptioner(CaptionGenerator):
    """A captioner with a decoder of `baselines.cells`.

    Implements `captioning.captioners.interface.Captioner`, which documents each method. encoder,
    tokenizer and objective are objects. Every other argument has the name of its configuration key.

    - model: one of `baselines.configured.MODELS`.
    - tokenizer: a `Vocabulary`, or a word-piece tokenizer with the same methods.
    - objective: None for SMILE.
    - prompt: the start of every caption. It is not scored, and generated captions leave it out.
    - max_tokens: training captions are truncated to this length, including the start and end token.
    - attention_dim, num_layers, deep_output: only for Show, Attend and Tell.
    - tie_embeddings: see `baselines.decoder.RecurrentDecoder.tie_embeddings`.
    - attention_penalty: the weight of `coverage_penalty`.
    - encoder_lr: the learning rate of the encoder's network; 0 for a frozen network.
    - embedding_lr: the learning rate of the word vectors; None for the run's learning rate.
    - teacher_forcing, teacher_forcing_k: see the function `baselines.decoder.teacher_forcing`.

    Raises ValueError for a prompt with an unknown word, and for a file of word vectors that cannot
    be read or does not fit.
    """

    def __init__(
        self,
        model: str,
        encoder: ImageEncoder,
        tokenizer,
        objective: Optional[Objective] = None,
        prompt: str = "",
        max_tokens: int = 40,
        embed_dim: int = 256,
        hidden_dim: int = 512,
        attention_dim: int = 512,
        num_layers: int = 1,
        deep_output: bool = True,
        dropout: float = 0.5,
        tie_embeddings: bool = False,
        word_vectors: Optional[str] = None,
        normalise_embeddings: bool = False,
        attention_penalty: float = 0.0,
        encoder_lr: float = 0.0,
        embedding_lr: Optional[float] = None,
        teacher_forcing: str = "always",
        teacher_forcing_k: float = 10.0,
        image_size: int = 64,
    ):
        super().__init__()
        self.encoder, self.tokenizer = encoder, tokenizer
        self.image_size = image_size
        sizes = {
            "vocabulary_size": len(tokenizer),
            "image_dim": encoder.dim,
            "embed_dim": embed_dim,
            "hidden_dim": hidden_dim,
            "dropout": dropout,
        }
        if model == "sat":
            self.decoder = ShowAttendTell(
                **sizes,
                attention_dim=attention_dim,
                num_layers=num_layers,
                deep_output=deep_output,
            )
        elif model == "attn":
            self.decoder = AttentionLSTM(**sizes)
        else:
            self.decoder = PooledDecoder(model, **sizes)
        if tie_embeddings:
            self.decoder.tie_embeddings()
        if word_vectors:
            tokens = [tokenizer.token(token_id) for token_id in range(len(tokenizer))]
            load_word_vectors(self.decoder.embedding, tokens, word_vectors)
        if normalise_embeddings:
            vectors = self.decoder.embedding.weight.data
            vectors.copy_(nn.functional.normalize(vectors, dim=1))
        self.objective = (objective or Objective("smile")).with_tokens(tokenizer.pad, tokenizer.end)
        self.prompt = prompt
        self.prompt_ids = tokenizer.encode_prompt(prompt)  # (p,)
        if tokenizer.unknown in self.prompt_ids:
            raise ValueError(f"prompt is {prompt!r}, but the vocabulary lacks one of its words")
        self.max_tokens = max_tokens
        self.attention_penalty = attention_penalty
        self.encoder_lr, self.embedding_lr = encoder_lr, embedding_lr
        self.forcing_schedule = teacher_forcing, teacher_forcing_k
        self.max_positions = None
        excluded = torch.tensor([tokenizer.pad, tokenizer.start, tokenizer.unknown])
        self.register_buffer("excluded", excluded, persistent=False)  # ids that get probability 0

    @property
    def min_batch_size(self) -> int:
        return self.encoder.min_batch_size

    def forward(
        self,
        image: Tensor,
        captions: list[list[str]],
        prompts: Prompts = None,
    ) -> ObjectiveOutput:
        """Compute the objective on k captions of each image. Each image is encoded once.

        image: (B, 3, S, S), normalised. captions: B lists of k strings, without the prompt.
        prompts: B prompts; None stands for the captioner's own prompt. Raises ValueError if there
        are not B lists of equal length.
        """
        logits, labels, attention = self._predict(image, captions, prompts)
        output = self.objective(logits, labels)
        if not self.attention_penalty:
            return output
        penalty = coverage_penalty(attention, labels != IGNORE)
        return ObjectiveOutput(
            output.loss + self.attention_penalty * penalty,
            {**output.parts, "attention": penalty.detach()},
            output.tokens,
        )

    def predictions(
        self,
        image: Tensor,
        captions: list[list[str]],
        prompts: Prompts = None,
    ) -> tuple[Tensor, Tensor]:
        """Return logits (R, N, V) and the labels (R, N) that they predict, R = B * k.

        `forward` documents the arguments. N is the number of positions after the shortest prompt.
        """
        return self._predict(image, captions, prompts)[:2]

    def _predict(
        self,
        image: Tensor,
        captions: list[list[str]],
        prompts: Prompts,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits (R, N, V), labels (R, N) and the attention (R, N, P).

        The attention is None for a decoder without attention.
        """
        batch_shape = (len(image), captions_per_image(captions, len(image)))
        *tensors, prompt_length = training_tokens(self, captions, prompts)
        tokens, _, labels = (tensor.to(image.device) for tensor in tensors)
        inputs = tokens[:, :-1].unflatten(0, batch_shape)  # (B, k, n)
        annotations = self.encoder(image)
        logits, attention = self.decoder(inputs, annotations, prompt_length)
        attention = None if attention is None else attention.flatten(0, 1)
        return logits.flatten(0, 1), labels[:, prompt_length:], attention

    def step_function(self, encoded: Tensor, settings: DecodingSettings) -> Step:
        return RecurrentStep(self.decoder, encoded, self.excluded)

    def encode(self, image: Tensor) -> Tensor:
        """Encode images (B, 3, S, S) -> annotations (B, P, D)."""
        return self.encoder(image)

    def caption_text(self, ids: Tensor) -> str:
        return self.tokenizer.decode(ids[self.prompt_ids.size(-1) :])

    @torch.inference_mode()
    def score_tokens(self, encoded: Tensor, ids: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        """Score a caption's ids (n,) with teacher forcing, given the annotations (1, P, D).

        Returns the logits (n - p, V) that predict the ids after the p ids of the prompt, and the
        attention map (n - p, P). Each row of the map sums to 1. The map is None for a decoder
        without attention.
        """
        logits, attention = self.decoder(ids[None, None, :-1], encoded, self.prompt_ids.size(-1))
        logits = logits[0, 0].index_fill(-1, self.excluded, float("-inf"))
        return logits, None if attention is None else attention[0, 0]

    def log_likelihoods(self, encoded: Tensor, ids: Tensor, temperature: float = 1.0) -> Tensor:
        """Return the log-likelihood of each token of captions (B, k, n) after the prompt.

        The result is float32 (B, k, n - p), where p is the length of the prompt, and 0 after a
        caption's end. It has a gradient.
        """
        prompt_length = self.prompt_ids.size(-1)
        logits, _ = self.decoder(ids[:, :, :-1], encoded, prompt_length)
        logits = logits.float().index_fill(-1, self.excluded, float("-inf"))
        tokens, end = ids[:, :, prompt_length:], self.tokenizer.end
        is_scored = until_end(tokens, end)
        logprobs = (logits / temperature).log_softmax(-1)
        logprobs = logprobs.gather(3, tokens.where(is_scored, end).unsqueeze(3)).squeeze(3)
        return logprobs.masked_fill(~is_scored, 0)

    def compile_parts(self) -> None:
        """Compile the encoder and the objective.

        The decoder is not compiled, because it would be recompiled for every caption length.
        """
        self.encoder.compile()
        self.objective.compile()

    def parameter_groups(self) -> list[tuple[list[nn.Parameter], Optional[float]]]:
        groups = []
        if self.encoder_lr:
            groups.append((list(self.encoder.network.parameters()), self.encoder_lr))
        if self.embedding_lr is not None:
            groups.append(([self.decoder.embedding.weight], self.embedding_lr))
        grouped = {id(parameter) for parameters, _ in groups for parameter in parameters}
        ungrouped = [p for p in self.parameters() if p.requires_grad and id(p) not in grouped]
        return [(ungrouped, None), *groups]

    def shards(self) -> list[nn.Module]:
        return [self.encoder, self.decoder]

    def begin_epoch(self, epoch: int) -> None:
        schedule, k = self.forcing_schedule
        self.decoder.teacher_forcing = teacher_forcing(schedule, epoch, k)

    def saved_beside_weights(self) -> dict[str, Any]:
        """Return {"vocabulary": words}, or {"tokenizer_files"} of a word-piece tokenizer."""
        if isinstance(self.tokenizer, Vocabulary):
            return {"vocabulary": self.tokenizer.words}
        return {"tokenizer_files": self.tokenizer.files}


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
