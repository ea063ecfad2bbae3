"""Defines the recurrent decoders: RNN, LSTM, LSTM with attention, and Show, Attend and Tell.

In formulas, x is the vector of the input word, h the hidden state and c the cell state; h' and c'
are the next states. The letters of shapes are those of `baselines.decoder`: B images, R captions, P
annotation vectors per image. The arguments of the constructors are those of `RecurrentDecoder`, and
image_dim, the width D of the annotations.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from baselines.decoder import AttentionDecoder, DecoderOutput, RecurrentDecoder, Tensors


class PooledDecoder(RecurrentDecoder):
    """An RNN or LSTM. Its initial state h0 is an affine map of the mean annotation.

    - config.model "rnn": h' = tanh(Wx x + Wh h + b).
    - "lstm": (i, f, g, o) = Wx x + Wh h + b, c' = sigmoid(f) c + sigmoid(i) tanh(g),
      h' = sigmoid(o) tanh(c'), and c0 = 0.
    """

    def __init__(self, config: Any, vocabulary_size: int, image_dim: int):
        super().__init__(config, vocabulary_size, config.hidden_dim)
        self.from_image = nn.Linear(image_dim, config.hidden_dim)
        self.is_lstm = config.model == "lstm"
        cell = nn.LSTM if self.is_lstm else nn.RNN
        self.cell = cell(config.embed_dim, config.hidden_dim, batch_first=True)

    def train(self, mode: bool = True) -> "PooledDecoder":
        super().train(mode)
        # Self-critical training needs gradients in evaluation mode, in which cuDNN's RNN has no
        # backward pass. So the cell stays in training mode. Its output is the same in both modes,
        # because one layer has no dropout.
        self.cell.train()
        return self

    def initial_state(self, annotations: Tensor) -> tuple[Tensors, Tensors]:
        hidden = self.from_image(annotations.mean(1))
        return [annotations], [hidden, torch.zeros_like(hidden)] if self.is_lstm else [hidden]

    def read(self, words: Tensor, memory: Tensors, state: Tensors) -> DecoderOutput:
        state = [part[None].to(words.dtype) for part in state]
        # On a CPU, autocast would call oneDNN's LSTM, which fails on processors without bfloat16 or
        # float16 instructions. On a GPU, autocast would use float16 even if its dtype is bfloat16.
        with torch.autocast(words.device.type, enabled=False):
            outputs, state = self.cell(words, state if self.is_lstm else state[0])
        state = [part[0] for part in state] if self.is_lstm else [state[0]]
        return self.dropout(outputs), state, words[..., :0]


class AttentionLSTM(AttentionDecoder):
    """An LSTM that attends to the image by scaled dot-product attention before each word.

    A (P, H) is an affine map of the annotations. The attention is a = softmax(A h / sqrt(H)), the
    context is z = a A, and the gates are Wx x + Wh h + Wz z + b. Gates become h' and c' as in an
    LSTM. The initial states h0 and c0 are both the mean of A over the P positions.
    """

    def __init__(self, config: Any, vocabulary_size: int, image_dim: int):
        width = config.hidden_dim
        super().__init__(config, vocabulary_size, width)
        self.from_image = nn.Linear(image_dim, width)
        self.word_gates = nn.Linear(config.embed_dim, 4 * width)
        self.hidden_gates = nn.Linear(width, 4 * width, bias=False)
        self.image_gates = nn.Linear(width, 4 * width, bias=False)

    def initial_state(self, annotations: Tensor) -> tuple[Tensors, Tensors]:
        projected = self.from_image(annotations)  # (B, P, H)
        return [projected], [projected.mean(1)] * 2

    def step(self, word: Tensor, memory: Tensors, state: Tensors) -> DecoderOutput:
        (projected,), (hidden, cell) = memory, state
        query = hidden.unflatten(0, (len(projected), -1))  # (B, R / B, H)
        scores = query @ projected.mT / math.sqrt(hidden.size(1))
        attention = scores.softmax(-1)  # (B, R / B, P)
        context = (attention @ projected).flatten(0, 1)  # (R, H)
        gates = self.word_gates(word) + self.hidden_gates(hidden) + self.image_gates(context)
        input_gate, forget_gate, candidate, output_gate = gates.chunk(4, -1)
        cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
        hidden = output_gate.sigmoid() * cell.tanh()
        return hidden, [hidden, cell], attention.flatten(0, 1)


class ShowAttendTell(AttentionDecoder):
    """Show, Attend and Tell with soft attention (Xu et al. 2015, arXiv 1502.03044).

    V (P, D) are the annotations and h is the hidden state of the top layer. For each word,

    - the attention is a = softmax(w tanh(Wv V + Wh h)), and A = attention_dim values enter tanh;
    - the context is z = a V, and the gate is beta = sigmoid(wb h);
    - the first LSTM layer reads [x, beta z], and each higher layer reads the output of the layer
      below, with dropout;
    - the head's input is x + Lh h' + Lz z if deep_output is true, otherwise h'.

    The initial states of all layers are affine maps of the mean annotation.
    """

    def __init__(self, config: Any, vocabulary_size: int, image_dim: int):
        embed_dim, width, layers = config.embed_dim, config.hidden_dim, config.num_layers
        super().__init__(config, vocabulary_size, embed_dim if config.deep_output else width)
        self.first_state = nn.Linear(image_dim, 2 * layers * width)
        self.key = nn.Linear(image_dim, config.attention_dim)
        self.query = nn.Linear(width, config.attention_dim, bias=False)
        self.score = nn.Linear(config.attention_dim, 1, bias=False)
        self.gate = nn.Linear(width, 1)
        input_widths = [embed_dim + image_dim] + [width] * (layers - 1)
        self.layers = nn.ModuleList(nn.LSTMCell(each, width) for each in input_widths)
        self.deep_output = config.deep_output
        if config.deep_output:
            self.from_hidden = nn.Linear(width, embed_dim)
            self.from_context = nn.Linear(image_dim, embed_dim)

    def initial_state(self, annotations: Tensor) -> tuple[Tensors, Tensors]:
        states = self.first_state(annotations.mean(1))
        return [annotations, self.key(annotations)], states.chunk(2 * len(self.layers), -1)

    def step(self, word: Tensor, memory: Tensors, state: Tensors) -> DecoderOutput:
        annotations, keys = memory  # (B, P, D), (B, P, A)
        hidden = state[-2]  # h of the top layer; the state is (h, c, h, c, ...), layer by layer
        query = self.query(hidden).unflatten(0, (len(keys), -1))  # (B, R / B, A)
        energies = torch.tanh(keys.unsqueeze(1) + query.unsqueeze(2))  # (B, R / B, P, A)
        attention = self.score(energies).squeeze(-1).softmax(-1)  # (B, R / B, P)
        context = (attention @ annotations).flatten(0, 1)  # (R, D)
        output = torch.cat([word, self.gate(hidden).sigmoid() * context], -1)
        next_state = []
        for index, layer in enumerate(self.layers):
            layer_input = self.dropout(output) if index else output
            next_state += layer(layer_input, state[2 * index : 2 * index + 2])
            output = next_state[-2]
        if self.deep_output:
            output = word + self.from_hidden(output) + self.from_context(context)
        return output, next_state, attention.flatten(0, 1)
