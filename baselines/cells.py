"""The three recurrent decoders of a first course: RNN, LSTM, and LSTM with dot-product attention.

x is the vector of the word read, h the hidden state, c the memory of an LSTM. Shapes as in
`baselines.decoder`.
"""

import math
from typing import Optional

from torch import Tensor, nn

from baselines.decoder import RecurrentDecoder, Tensors


class PooledDecoder(RecurrentDecoder):
    """RNN or LSTM that sees the image once: h0 is an affine map of the mean annotation.

    cell "rnn": h' = tanh(Wx x + Wh h + b). "lstm": (i, f, g, o) = Wx x + Wh h + b,
    c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c'), from c0 = 0.
    """

    def __init__(
        self,
        cell: str,
        vocabulary_size: int,
        image_dim: int,
        embed_dim: int = 256,
        hidden_dim: int = 512,
        dropout: float = 0.0,
    ):
        super().__init__(vocabulary_size, embed_dim, hidden_dim, dropout)
        self.from_image = nn.Linear(image_dim, hidden_dim)
        cells = {"rnn": nn.RNN, "lstm": nn.LSTM}
        self.cell = cells[cell](embed_dim, hidden_dim, batch_first=True)

    def begin(self, annotations: Tensor) -> tuple[Tensors, Tensors]:
        hidden = self.from_image(annotations.mean(1))  # (B, H)
        has_memory = isinstance(self.cell, nn.LSTM)
        return (), (hidden, hidden.new_zeros(hidden.shape)) if has_memory else (hidden,)

    def advance(
        self, embedded: Tensor, memory: Tensors, state: Tensors
    ) -> tuple[Tensor, Tensors, Optional[Tensor]]:
        outputs, state = self._run(embedded.unsqueeze(2), state)
        return outputs.squeeze(2), state, None

    def read(
        self, tokens: Tensor, annotations: Tensor, given: int
    ) -> tuple[Tensor, Optional[Tensor]]:
        if self.training and self.teacher_forcing < 1:
            return super().read(tokens, annotations, given)
        _, state = self.begin(annotations)
        state = tuple(part.unsqueeze(1).expand(-1, tokens.size(1), -1) for part in state)
        return self.dropout(self._run(self.embed(tokens), state)[0]), None

    def _run(self, embedded: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """torch's own loop over n words: embedded (B, k, n, E), state (B, k, H) each."""
        rows = embedded.shape[:2]
        flat = tuple(part.reshape(1, -1, part.size(2)) for part in state)
        outputs, state = self.cell(embedded.flatten(0, 1), flat if len(flat) > 1 else flat[0])
        state = state if isinstance(state, tuple) else (state,)
        return outputs.unflatten(0, rows), tuple(part[0].unflatten(0, rows) for part in state)


class AttentionLSTM(RecurrentDecoder):
    """An LSTM that looks at the image before each word, by scaled dot products.

    With A (P, H), an affine map of the annotations: weights a = softmax(A h / sqrt(H)), attended
    z = a A, gates Wx x + Wh h + Wz z + b, the rest as in an LSTM; h0 = c0 = the mean of A.
    """

    def __init__(
        self,
        vocabulary_size: int,
        image_dim: int,
        embed_dim: int = 256,
        hidden_dim: int = 512,
        dropout: float = 0.0,
    ):
        super().__init__(vocabulary_size, embed_dim, hidden_dim, dropout)
        self.from_image = nn.Linear(image_dim, hidden_dim)
        self.word_gates = nn.Linear(embed_dim, 4 * hidden_dim)
        self.hidden_gates = nn.Linear(hidden_dim, 4 * hidden_dim, bias=False)
        self.image_gates = nn.Linear(hidden_dim, 4 * hidden_dim, bias=False)

    def begin(self, annotations: Tensor) -> tuple[Tensors, Tensors]:
        places = self.from_image(annotations)  # (B, P, H)
        mean = places.mean(1)
        return (places,), (mean, mean)

    def advance(
        self, embedded: Tensor, memory: Tensors, state: Tensors
    ) -> tuple[Tensor, Tensors, Optional[Tensor]]:
        (places,), (hidden, cell) = memory, state
        scores = hidden @ places.transpose(1, 2) / math.sqrt(hidden.size(2))  # (B, k, P)
        attention = scores.softmax(-1)
        attended = attention @ places  # (B, k, H)
        gates = self.word_gates(embedded) + self.hidden_gates(hidden) + self.image_gates(attended)
        write, keep, candidate, show = gates.chunk(4, -1)
        cell = keep.sigmoid() * cell + write.sigmoid() * candidate.tanh()
        hidden = show.sigmoid() * cell.tanh()
        return hidden, (hidden, cell), attention
