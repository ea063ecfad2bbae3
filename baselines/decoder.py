"""Defines the recurrent decoders' base class, step function and teacher forcing schedules.

The decoders themselves are in `baselines.cells`. Shapes: B images with P annotation vectors of
width D; R captions, grouped by image, the same number for each image; n tokens per caption; E the
width of word vectors; H the width of the hidden state; O the width of the head's input
(`output_dim`); V the vocabulary size.
"""

import math
from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor, nn

Tensors = Sequence[Tensor]
DecoderOutput = tuple[Tensor, Tensors, Tensor]  # head input, next state, attention


class RecurrentDecoder(nn.Module):
    """A decoder that reads the words of a caption one by one. A subclass defines:

    - initial_state(annotations (B, P, D)) -> (memory, state). The memory is tensors (B, ...) that
      do not change from word to word. The state is tensors (B, H) that each word replaces.
    - read(words (R, n, E), memory, state (R, H)) -> (head inputs (R, n, O), next state, attention
      (R, n, P)). Dropout was applied to the words, and is applied to the head's inputs. P is 0 for
      a decoder without attention.

    Arguments and attributes:

    - config: has the keys of `baselines.configured.Keys`.
    - output_dim: the width of the head's input.
    - teacher_forcing: in training, the probability that the decoder reads the caption's word.
      Otherwise it reads the word that it found most likely (scheduled sampling, arXiv 1506.03099).
      `ClassicCaptioner.begin_epoch` sets it.
    """

    teacher_forcing = 1.0

    def __init__(self, config: Any, vocabulary_size: int, output_dim: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, config.embed_dim)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(output_dim, vocabulary_size)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.embedding(tokens))

    def forward(
        self, tokens: Tensor, annotations: Tensor, prompt_length: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Return next-token logits (R, n - p + 1, V) and the attention (R, n - p + 1, P).

        tokens: int64 (R, n), which begin with the p = `prompt_length` tokens of the prompt.
        Scheduled sampling never replaces a token of the prompt. annotations: (B, P, D). The first
        logits predict the token after the prompt. P is 0 for a decoder without attention.
        """
        memory, state = self.initial_state(annotations)
        state = [part.repeat_interleave(len(tokens) // len(part), 0) for part in state]
        is_sampling = self.training and self.teacher_forcing < 1
        outputs, attention = [], []
        for words in self.embed(tokens).split(1 if is_sampling else tokens.size(1), 1):
            if is_sampling and len(outputs) >= prompt_length:
                with torch.no_grad():
                    predicted = self.head(outputs[-1]).argmax(-1)  # (R, 1)
                is_forced = torch.rand_like(words[..., :1]) < self.teacher_forcing
                words = words.where(is_forced, self.embed(predicted))
            output, state, weights = self.read(words, memory, state)
            outputs.append(output)
            attention.append(weights)
        start = prompt_length - 1
        return self.head(torch.cat(outputs, 1)[:, start:]), torch.cat(attention, 1)[:, start:]


class AttentionDecoder(RecurrentDecoder):
    """A decoder whose attention depends on the state, so that words cannot be read at once.

    A subclass defines step(word (R, E), memory, state) -> (head input before dropout (R, O), next
    state, attention (R, P)).
    """

    def read(self, words: Tensor, memory: Tensors, state: Tensors) -> DecoderOutput:
        outputs, attention = [], []
        for word in words.unbind(1):
            output, state, weights = self.step(word, memory, state)
            outputs.append(self.dropout(output))
            attention.append(weights)
        return torch.stack(outputs, 1), state, torch.stack(attention, 1)


class RecurrentStep:
    """Implements `decoding.Step`. All captions of an image share the decoder's memory of it.

    annotations: the encoded images, (B, P, D). excluded: int64 (u,), ids that are never generated,
    such as those of padding and <UNK>.
    """

    def __init__(self, decoder: RecurrentDecoder, annotations: Tensor, excluded: Tensor):
        self.decoder, self.excluded = decoder, excluded
        self.memory, self.state = decoder.initial_state(annotations)

    def __call__(self, tokens: Tensor, rows: Optional[Tensor]) -> Tensor:
        if rows is not None:
            images = len(self.memory[0])
            if len(rows) < images:  # finished images were removed
                kept = rows[:, 0] * images // len(self.state[0])
                self.memory = [part[kept] for part in self.memory]
            self.state = [part[rows.flatten()] for part in self.state]
        words = self.decoder.embed(tokens.flatten(0, 1))
        outputs, self.state, _ = self.decoder.read(words, self.memory, self.state)
        logits = self.decoder.head(outputs[:, -1]).index_fill(-1, self.excluded, -math.inf)
        return logits.unflatten(0, tokens.shape[:2])


def teacher_forcing(config: Any, epoch: int) -> float:
    """Return the probability of teacher forcing in `epoch`, counted from 0.

    config: has the keys `teacher_forcing`, a schedule, and `teacher_forcing_k`, its k:

    - always: 1. never: 0.
    - linear: 1 - epoch / k, but 0 from epoch k on.
    - exponential: k ** epoch, with k < 1.
    - inverse_sigmoid: k / (k + exp(epoch / k)), with k >= 1. It is 0.5 at epoch k ln k.

    Source: Bengio et al. 2015 (arXiv 1506.03099), section 2.4. The paper's schedules count batches
    instead of epochs.
    """
    schedule, k = config.teacher_forcing, config.teacher_forcing_k
    if schedule == "linear":
        return max(0.0, 1 - epoch / k)
    if schedule == "exponential":
        return k**epoch
    if schedule == "inverse_sigmoid":
        return 1 / (1 + math.exp(min(epoch / k, 700)) / k)
    return float(schedule == "always")
