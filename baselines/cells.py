"""Defines the recurrent decoders: RNN, LSTM, LSTM with attention, and Show, Attend and Tell.

In formulas, x is the vector of the input word, h the hidden state and c the cell state; h' and c'
are the next states. The letters of shapes are those of `baselines.decoder`: B images, k captions
per image, P annotation vectors per image.
"""

import math

import torch
from torch import Tensor, nn

from baselines.decoder import DecoderOutput, RecurrentDecoder, StepOutput, Tensors


class PooledDecoder(RecurrentDecoder):
    """An RNN or LSTM. Its initial state h0 is an affine map of the mean annotation.

    - cell "rnn": h' = tanh(Wx x + Wh h + b).
    - cell "lstm": (i, f, g, o) = Wx x + Wh h + b, c' = sigmoid(f) c + sigmoid(i) tanh(g),
      h' = sigmoid(o) tanh(c'), and c0 = 0.
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
        # Self-critical training needs gradients in evaluation mode, in which cuDNN's RNN has no
        # backward pass. So the cell stays in training mode. Its output is the same in both modes,
        # because one layer has no dropout.
        self.cell.train()
        return self

    def initial_state(self, annotations: Tensor) -> tuple[Tensors, Tensors]:
        hidden = self.from_image(annotations.mean(1))  # (B, H)
        has_cell_state = isinstance(self.cell, nn.LSTM)
        return (), (hidden, hidden.new_zeros(hidden.shape)) if has_cell_state else (hidden,)

    def step(self, embedded: Tensor, memory: Tensors, state: Tensors) -> StepOutput:
        outputs, state = self._run_cell(embedded.unsqueeze(2), state)
        return StepOutput(outputs.squeeze(2), state)

    def unroll(self, tokens: Tensor, annotations: Tensor, prompt_length: int) -> DecoderOutput:
        if self.samples_words:
            return super().unroll(tokens, annotations, prompt_length)
        _, state = self.expanded_initial_state(annotations, tokens.size(1))
        outputs, _ = self._run_cell(self.embed(tokens), state)
        return self.dropout(outputs), None

    def _run_cell(self, embedded: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """Run torch's RNN or LSTM over n words. embedded: (B, k, n, E); state: tensors (B, k, H).

        Returns the outputs (B, k, n, H) and the next state. Autocast is turned off. On a CPU,
        autocast would call oneDNN's LSTM, which fails on processors without bfloat16 or float16
        instructions. On a GPU, autocast would use float16 even if its dtype is bfloat16.
        """
        batch_shape = embedded.shape[:2]
        dtype = self.cell.weight_hh_l0.dtype
        inputs = embedded.flatten(0, 1).to(dtype)
        flat_state = tuple(part.reshape(1, -1, part.size(2)).to(dtype) for part in state)
        with torch.autocast(inputs.device.type, enabled=False):
            outputs, state = self.cell(inputs, flat_state if len(flat_state) > 1 else flat_state[0])
        state = state if isinstance(state, tuple) else (state,)
        return outputs.unflatten(0, batch_shape), tuple(
            part[0].unflatten(0, batch_shape) for part in state
        )


class AttentionLSTM(RecurrentDecoder):
    """An LSTM that attends to the image by scaled dot-product attention before each word.

    A (P, H) is an affine map of the annotations. The attention is a = softmax(A h / sqrt(H)), the
    context is z = a A, and the gates are Wx x + Wh h + Wz z + b. Gates become h' and c' as in an
    LSTM. The initial states h0 and c0 are both the mean of A over the P positions.
    """

    def __init__(
        self, vocabulary_size: int, image_dim: int, embed_dim: int, hidden_dim: int, dropout: float
    ):
        super().__init__(vocabulary_size, embed_dim, hidden_dim, dropout)
        self.from_image = nn.Linear(image_dim, hidden_dim)
        self.word_gates = nn.Linear(embed_dim, 4 * hidden_dim)
        self.hidden_gates = nn.Linear(hidden_dim, 4 * hidden_dim, bias=False)
        self.image_gates = nn.Linear(hidden_dim, 4 * hidden_dim, bias=False)

    def initial_state(self, annotations: Tensor) -> tuple[Tensors, Tensors]:
        projected = self.from_image(annotations)  # (B, P, H)
        mean = projected.mean(1)
        return (projected,), (mean, mean)

    def step(self, embedded: Tensor, memory: Tensors, state: Tensors) -> StepOutput:
        (projected,), (hidden, cell) = memory, state
        scores = hidden @ projected.transpose(1, 2) / math.sqrt(hidden.size(2))  # (B, k, P)
        attention = scores.softmax(-1)
        context = attention @ projected  # (B, k, H)
        gates = self.word_gates(embedded) + self.hidden_gates(hidden) + self.image_gates(context)
        input_gate, forget_gate, candidate, output_gate = gates.chunk(4, -1)
        cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
        hidden = output_gate.sigmoid() * cell.tanh()
        return StepOutput(hidden, (hidden, cell), attention)


class ShowAttendTell(RecurrentDecoder):
    """Show, Attend and Tell with soft attention (Xu et al. 2015, arXiv 1502.03044).

    V (P, D) are the annotations and h is the hidden state of the top layer. For each word,

    - the attention is a = softmax(w tanh(Wv V + Wh h)), and A = attention_dim values enter tanh;
    - the context is z = a V, and the gate is beta = sigmoid(wb h);
    - the first LSTM layer reads [x, beta z], and each higher layer reads the output of the layer
      below, with dropout;
    - the head's input is x + Lh h' + Lz z if deep_output is true, otherwise h'.

    The initial states of all layers are affine maps of the mean annotation.
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
        input_widths = [embed_dim + image_dim] + [hidden_dim] * (num_layers - 1)
        self.layers = nn.ModuleList(nn.LSTMCell(width, hidden_dim) for width in input_widths)
        self.deep_output = deep_output
        if deep_output:
            self.from_hidden = nn.Linear(hidden_dim, embed_dim)
            self.from_context = nn.Linear(image_dim, embed_dim)

    def initial_state(self, annotations: Tensor) -> tuple[Tensors, Tensors]:
        states = self.first_state(annotations.mean(1))
        return (annotations, self.key(annotations)), states.chunk(2 * len(self.layers), -1)

    def step(self, embedded: Tensor, memory: Tensors, state: Tensors) -> StepOutput:
        annotations, keys = memory  # (B, P, D), (B, P, A)
        hidden = state[-2]  # h of the top layer; the state is (h, c, h, c, ...), layer by layer
        energies = torch.tanh(keys.unsqueeze(1) + self.query(hidden).unsqueeze(2))  # (B, k, P, A)
        attention = self.score(energies).squeeze(-1).softmax(-1)  # (B, k, P)
        context = attention @ annotations  # (B, k, D)
        layer_output = torch.cat([embedded, self.gate(hidden).sigmoid() * context], -1)
        next_state = []
        for index, layer in enumerate(self.layers):
            layer_state = tuple(part.flatten(0, 1) for part in state[2 * index : 2 * index + 2])
            layer_input = layer_output if index == 0 else self.dropout(layer_output)
            new_state = layer(layer_input.flatten(0, 1), layer_state)
            next_state += [part.unflatten(0, hidden.shape[:2]) for part in new_state]
            layer_output = next_state[-2]
        if self.deep_output:
            layer_output = embedded + self.from_hidden(layer_output) + self.from_context(context)
        return StepOutput(layer_output, tuple(next_state), attention)
