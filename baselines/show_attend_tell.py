"""Show, Attend and Tell with soft attention (Xu et al. 2015, arXiv 1502.03044)."""

from typing import Optional

import torch
from torch import Tensor, nn

from baselines.decoder import RecurrentDecoder, Tensors


class ShowAttendTell(RecurrentDecoder):
    """LSTMs that look at the image before each word, by additive attention with a gate.

    With annotations V (P, D) and the top layer's state h: weights a = softmax(w tanh(Wv V + Wh h)),
    context z = a V, gate b = sigmoid(wb h); the first LSTM reads [x, b z], each further one the
    layer below. The head sees x + Lh h' + Lz z. The first states of all layers are linear maps of
    the mean annotation. Shapes as in `baselines.decoder`; the attention has A channels.
    """

    def __init__(
        self,
        vocabulary_size: int,
        image_dim: int,
        embed_dim: int = 512,
        hidden_dim: int = 512,
        attention_dim: int = 512,
        num_layers: int = 1,
        dropout: float = 0.5,
    ):
        super().__init__(vocabulary_size, embed_dim, embed_dim, dropout)
        self.first_state = nn.Linear(image_dim, 2 * num_layers * hidden_dim)
        self.key = nn.Linear(image_dim, attention_dim)
        self.query = nn.Linear(hidden_dim, attention_dim, bias=False)
        self.score = nn.Linear(attention_dim, 1, bias=False)
        self.gate = nn.Linear(hidden_dim, 1)
        widths = [embed_dim + image_dim] + [hidden_dim] * (num_layers - 1)
        self.layers = nn.ModuleList(nn.LSTMCell(width, hidden_dim) for width in widths)
        self.from_hidden = nn.Linear(hidden_dim, embed_dim)
        self.from_context = nn.Linear(image_dim, embed_dim)

    def begin(self, annotations: Tensor) -> tuple[Tensors, Tensors]:
        first = self.first_state(annotations.mean(1))
        return (annotations, self.key(annotations)), first.chunk(2 * len(self.layers), -1)

    def advance(
        self, embedded: Tensor, memory: Tensors, state: Tensors
    ) -> tuple[Tensor, Tensors, Optional[Tensor]]:
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
        output = embedded + self.from_hidden(below) + self.from_context(context)
        return output, tuple(following), attention
