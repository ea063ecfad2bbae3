"""Defines the recurrent decoders' base class, step function and teacher forcing schedules.

The decoders themselves are in `baselines.cells`. Shapes: B images with P annotation vectors of
width D; k captions per image; n tokens per caption; E the width of word vectors; H the width of the
hidden state; O the width of the head's input (`output_dim`); V the vocabulary size.
"""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple, Optional

import torch
from torch import Tensor, nn

Tensors = tuple[Tensor, ...]
DecoderOutput = tuple[Tensor, Optional[Tensor]]  # logits or head inputs, attention


class StepOutput(NamedTuple):
    """What a decoder returns for one word of each caption.

    head_input: the head's input before dropout (B, k, O). state: the next state. attention:
    (B, k, P); None for a decoder without attention.
    """

    head_input: Tensor
    state: Tensors
    attention: Optional[Tensor] = None


class RecurrentDecoder(nn.Module, ABC):
    """A decoder that reads the words of a caption one by one.

    Subclasses define `initial_state` and `step`. teacher_forcing: in training, the probability that
    the decoder reads the caption's word. Otherwise it reads the word that it found most likely
    (scheduled sampling, arXiv 1506.03099). `ClassicCaptioner.begin_epoch` sets it.
    """

    def __init__(self, vocabulary_size: int, embed_dim: int, output_dim: int, dropout: float):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, embed_dim)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(output_dim, vocabulary_size)
        self.teacher_forcing = 1.0

    def tie_embeddings(self) -> None:
        """Share one parameter between word vectors and head (Inan et al. 2017, arXiv 1611.01462).

        The shared parameter gets the head's initial values, because those of an embedding are much
        larger. The head's input must have width E. Loading a checkpoint in which the two weights
        differ raises ValueError.
        """
        self.embedding.weight = self.head.weight
        self.register_load_state_dict_pre_hook(_check_tied)

    @abstractmethod
    def initial_state(self, annotations: Tensor) -> tuple[Tensors, Tensors]:
        """Return the memory and the initial state for annotations (B, P, D).

        The memory is a tuple of tensors (B, ...) that do not change from word to word. The state is
        a tuple of tensors (B, H) that each step replaces.
        """

    def expanded_initial_state(self, annotations: Tensor, count: int) -> tuple[Tensors, Tensors]:
        """Return memory and initial state of k = `count` captions per image: tensors (B, k, H)."""
        memory, state = self.initial_state(annotations)
        return memory, tuple(part.unsqueeze(1).expand(-1, count, -1) for part in state)

    @property
    def samples_words(self) -> bool:
        """Whether scheduled sampling replaces words of the caption."""
        return self.training and self.teacher_forcing < 1

    @abstractmethod
    def step(self, embedded: Tensor, memory: Tensors, state: Tensors) -> StepOutput:
        """Read one word of each caption. embedded: (B, k, E); state: tensors (B, k, H)."""

    def embed(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.embedding(tokens))

    def forward(self, tokens: Tensor, annotations: Tensor, prompt_length: int = 1) -> DecoderOutput:
        """Return next-token logits (B, k, n - p + 1, V) and the attention (B, k, n - p + 1, P).

        tokens: int64 (B, k, n), which begin with the p = `prompt_length` tokens of the prompt.
        Scheduled sampling never replaces a token of the prompt. The first logits predict the token
        after the prompt. The attention is None for a decoder without attention.
        """
        outputs, attention = self.unroll(tokens, annotations, prompt_length)
        caption_attention = None if attention is None else attention[:, :, prompt_length - 1 :]
        return self.head(outputs[:, :, prompt_length - 1 :]), caption_attention

    def unroll(self, tokens: Tensor, annotations: Tensor, prompt_length: int) -> DecoderOutput:
        """Return the head's inputs (B, k, n, O) at all tokens, and the attention (B, k, n, P).

        The attention is None for a decoder without attention. Dropout is applied to the head's
        inputs, also when scheduled sampling computes the most likely word from them.
        """
        memory, state = self.expanded_initial_state(annotations, tokens.size(1))
        embedded = self.embed(tokens)  # (B, k, n, E)
        outputs, attention = [], []
        for position in range(tokens.size(2)):
            embedded_word = embedded[:, :, position]
            if self.samples_words and position >= prompt_length:
                with torch.no_grad():
                    predicted = self.head(outputs[-1]).argmax(-1)  # (B, k)
                is_forced = torch.rand_like(embedded_word[..., :1]) < self.teacher_forcing
                embedded_word = torch.where(is_forced, embedded_word, self.embed(predicted))
            head_input, state, attention_weights = self.step(embedded_word, memory, state)
            outputs.append(self.dropout(head_input))
            attention.append(attention_weights)
        has_attention = attention_weights is not None
        return torch.stack(outputs, 2), torch.stack(attention, 2) if has_attention else None


def _check_tied(_, state: dict[str, Tensor], prefix: str, *__) -> None:
    """Raise ValueError if a state dict has different values for the two tied weights.

    This is a hook that load_state_dict calls.
    """
    embedding, head = (state.get(f"{prefix}{part}.weight") for part in ("embedding", "head"))
    if embedding is not None and head is not None and not torch.equal(embedding, head):
        raise ValueError(
            "tie_embeddings is true, but the checkpoint's word vectors and output weights differ: "
            "it was trained without tie_embeddings"
        )


class RecurrentStep:
    """Implements `decoding.Step`. All rows of an image share the decoder's memory of the image.

    excluded: int64 (u,), ids that are never generated, such as those of padding and <UNK>.
    """

    def __init__(self, decoder: RecurrentDecoder, annotations: Tensor, excluded: Tensor):
        """Compute the initial state. annotations: the encoded images, (B, P, D)."""
        self.decoder = decoder
        self.memory, state = decoder.initial_state(annotations)
        self.state = tuple(part.unsqueeze(1) for part in state)  # (B, 1, H) each
        self.excluded = excluded

    def __call__(self, tokens: Tensor, rows: Optional[Tensor]) -> Tensor:
        if rows is not None:
            if len(rows) < len(self.state[0]):  # finished images have been removed
                images = rows[:, 0] // self.state[0].size(1)
                self.memory = tuple(part[images] for part in self.memory)
            self.state = tuple(part.flatten(0, 1)[rows] for part in self.state)
        for embedded in self.decoder.embed(tokens).unbind(2):
            head_input, self.state, _ = self.decoder.step(embedded, self.memory, self.state)
        return self.decoder.head(head_input).index_fill(-1, self.excluded, float("-inf"))


def teacher_forcing(schedule: str, epoch: int, k: float) -> float:
    """Return the probability of teacher forcing in `epoch`, counted from 0.

    schedule: one of `baselines.configured.SCHEDULES`:
    - always: 1. never: 0.
    - linear: 1 - epoch / k, but 0 from epoch k on.
    - exponential: k ** epoch, with k < 1.
    - inverse_sigmoid: k / (k + exp(epoch / k)), with k >= 1. It is 0.5 at epoch k ln k.

    Source: Bengio et al. 2015 (arXiv 1506.03099), section 2.4. The paper's schedules count batches
    instead of epochs.
    """
    if schedule == "always":
        return 1.0
    if schedule == "never":
        return 0.0
    if schedule == "linear":
        return max(0.0, 1 - epoch / k)
    if schedule == "exponential":
        return k**epoch
    return 1 / (1 + math.exp(min(epoch / k, 700)) / k)


def inverse_sigmoid_k(epoch: float) -> float:
    """Return the k with which the inverse sigmoid schedule is 0.5 at `epoch`.

    Solves k ln k = epoch by Newton's method. Newton's method converges, because the start is above
    the solution and k ln k is convex.
    """
    k = 1 + epoch
    for _ in range(20):
        k -= (k * math.log(k) - epoch) / (math.log(k) + 1)
    return k
