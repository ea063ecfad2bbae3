"""The recurrent decoders: RNN, LSTM, LSTM with dot-product attention, and Show, Attend and Tell.

x is the input word's vector, h the hidden state, c the cell state of an LSTM. Shapes as in
`baselines.decoder`.
"""

import math

import torch
from torch import Tensor, nn

from baselines.decoder import Advanced, Read, RecurrentDecoder, Tensors


class PooledDecoder(RecurrentDecoder):
    """RNN or LSTM whose h0 is an affine map of the mean annotation.

    cell "rnn": h' = tanh(Wx x + Wh h + b). "lstm": (i, f, g, o) = Wx x + Wh h + b,
    c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c'), from c0 = 0.
    """

    def __init__(
        self,
        cell: str,
        vocabulary_size: int,
        image_dim: int,
        embed_dim: int,
        hidden_dim: int,
        dropout: float,
    ):
        super().__init__(vocabulary_size, embed_dim, hidden_dim, dropout)
        self.from_image = nn.Linear(image_dim, hidden_dim)
        cells = {"rnn": nn.RNN, "lstm": nn.LSTM}
        self.cell = cells[cell](embed_dim, hidden_dim, batch_first=True)

    def train(self, mode: bool = True) -> "PooledDecoder":
        super().train(mode)
        self.cell.train()  # cuDNN has a backward in this mode only; the cell has no dropout
        return self

    def begin(self, annotations: Tensor) -> tuple[Tensors, Tensors]:
        hidden = self.from_image(annotations.mean(1))  # (B, H)
        has_memory = isinstance(self.cell, nn.LSTM)
        return (), (hidden, hidden.new_zeros(hidden.shape)) if has_memory else (hidden,)

    def advance(self, embedded: Tensor, memory: Tensors, state: Tensors) -> Advanced:
        outputs, state = self._run(embedded.unsqueeze(2), state)
        return outputs.squeeze(2), state, None

    def read(self, tokens: Tensor, annotations: Tensor, prompt: int) -> Read:
        if self.training and self.teacher_forcing < 1:
            return super().read(tokens, annotations, prompt)
        _, state = self.begin(annotations)
        state = tuple(part.unsqueeze(1).expand(-1, tokens.size(1), -1) for part in state)
        return self.dropout(self._run(self.embed(tokens), state)[0]), None

    def _run(self, embedded: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """torch's loop over n words: embedded (B, k, n, E), state (B, k, H) each.

        Without autocast: on a CPU it would call oneDNN's LSTM, which fails where the CPU lacks
        bfloat16 or float16; on a GPU it would use float16 whatever its dtype.
        """
        rows = embedded.shape[:2]
        flat = tuple(part.reshape(1, -1, part.size(2)) for part in state)
        dtype = self.cell.weight_hh_l0.dtype
        words, flat = embedded.flatten(0, 1).to(dtype), tuple(part.to(dtype) for part in flat)
        with torch.autocast(words.device.type, enabled=False):
            outputs, state = self.cell(words, flat if len(flat) > 1 else flat[0])
        state = state if isinstance(state, tuple) else (state,)
        return outputs.unflatten(0, rows), tuple(part[0].unflatten(0, rows) for part in state)


class AttentionLSTM(RecurrentDecoder):
    """An LSTM with scaled dot-product attention to the image before each word.

    With A (P, H), an affine map of the annotations: weights a = softmax(A h / sqrt(H)), attended
    z = a A, gates Wx x + Wh h + Wz z + b, the rest as in an LSTM; h0 = c0 = the mean of A.
    """

    def __init__(
        self, vocabulary_size: int, image_dim: int, embed_dim: int, hidden_dim: int, dropout: float
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

    def advance(self, embedded: Tensor, memory: Tensors, state: Tensors) -> Advanced:
        (places,), (hidden, cell) = memory, state
        scores = hidden @ places.transpose(1, 2) / math.sqrt(hidden.size(2))  # (B, k, P)
        attention = scores.softmax(-1)
        attended = attention @ places  # (B, k, H)
        gates = self.word_gates(embedded) + self.hidden_gates(hidden) + self.image_gates(attended)
        write, keep, candidate, show = gates.chunk(4, -1)
        cell = keep.sigmoid() * cell + write.sigmoid() * candidate.tanh()
        hidden = show.sigmoid() * cell.tanh()
        return hidden, (hidden, cell), attention


class ShowAttendTell(RecurrentDecoder):
    """LSTMs with gated additive attention to the image before each word: Show, Attend and Tell with
    soft attention (Xu et al. 2015, arXiv 1502.03044).

    With annotations V (P, D) and the top layer's state h: weights a = softmax(w tanh(Wv V + Wh h)),
    context z = a V, gate b = sigmoid(wb h); the first LSTM reads [x, b z], each further one the
    layer below. The head sees x + Lh h' + Lz z, or h' alone without deep_output. The first states
    of all layers are linear maps of the mean annotation. The attention has A channels.
    """

    def __init__(
        self,
        vocabulary_size: int,
        image_dim: int,
        embed_dim: int,
        hidden_dim: int,
        dropout: float,
        attention_dim: int,
        num_layers: int,
        deep_output: bool = True,
    ):
        output_dim = embed_dim if deep_output else hidden_dim
        super().__init__(vocabulary_size, embed_dim, output_dim, dropout)
        self.first_state = nn.Linear(image_dim, 2 * num_layers * hidden_dim)
        self.key = nn.Linear(image_dim, attention_dim)
        self.query = nn.Linear(hidden_dim, attention_dim, bias=False)
        self.score = nn.Linear(attention_dim, 1, bias=False)
        self.gate = nn.Linear(hidden_dim, 1)
        widths = [embed_dim + image_dim] + [hidden_dim] * (num_layers - 1)
        self.layers = nn.ModuleList(nn.LSTMCell(width, hidden_dim) for width in widths)
        self.deep_output = deep_output
        if deep_output:
            self.from_hidden = nn.Linear(hidden_dim, embed_dim)
            self.from_context = nn.Linear(image_dim, embed_dim)

    def begin(self, annotations: Tensor) -> tuple[Tensors, Tensors]:
        first = self.first_state(annotations.mean(1))
        return (annotations, self.key(annotations)), first.chunk(2 * len(self.layers), -1)

    def advance(self, embedded: Tensor, memory: Tensors, state: Tensors) -> Advanced:
        annotations, keys = memory  # (B, P, D), (B, P, A)
        hidden = state[-2]  # of the top layer
        pairs = torch.tanh(keys.unsqueeze(1) + self.query(hidden).unsqueeze(2))  # (B, k, P, A)
        attention = self.score(pairs).squeeze(-1).softmax(-1)  # (B, k, P)
        context = attention @ annotations  # (B, k, D)
        below = torch.cat([embedded, self.gate(hidden).sigmoid() * context], -1)
        following = []
        for number, layer in enumerate(self.layers):
            own = tuple(part.flatten(0, 1) for part in state[2 * number : 2 * number + 2])
            layer_input = below if number == 0 else self.dropout(below)
            pair = layer(layer_input.flatten(0, 1), own)
            following += [part.unflatten(0, hidden.shape[:2]) for part in pair]
            below = following[-2]
        if self.deep_output:
            below = embedded + self.from_hidden(below) + self.from_context(context)
        return below, tuple(following), attention
