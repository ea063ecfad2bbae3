"""Show, Attend and Tell against its equations, written out as loops over places."""

import pytest
import torch
from torch import nn

from baselines.cells import ShowAttendTell

V, D, E, H, A, P = 11, 5, 4, 6, 7, 3


def make(layers=1, dropout=0.0, **more):
    sizes = {"embed_dim": E, "hidden_dim": H, "attention_dim": A}
    return ShowAttendTell(V, D, **sizes, num_layers=layers, dropout=dropout, **more).double()


def inputs():
    return torch.randint(V, (2, 3, 5)), torch.randn(2, P, D, dtype=torch.float64)


def lstm_cell(layer, x, hidden, cell):
    gates = layer.weight_ih @ x + layer.bias_ih + layer.weight_hh @ hidden + layer.bias_hh
    i, f, g, o = gates.split(H)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def reference(decoder, tokens, places, layers, deep_output=True):
    """One caption of one image: tokens (n,), places (P, D)."""
    first = decoder.first_state.weight @ places.mean(0) + decoder.first_state.bias
    states = list(first.split(H))  # h and c of each layer in turn
    logits, attention = [], []
    for token in tokens:
        x = decoder.embedding.weight[token]
        hidden = states[2 * (layers - 1)]
        scores = []
        for place in places:
            pair = decoder.key.weight @ place + decoder.key.bias + decoder.query.weight @ hidden
            scores.append(decoder.score.weight[0] @ torch.tanh(pair))
        weights = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
        context = sum(weight * place for weight, place in zip(weights, places))
        gate = (decoder.gate.weight[0] @ hidden + decoder.gate.bias[0]).sigmoid()
        below = torch.cat([x, gate * context])
        for n, layer in enumerate(decoder.layers):
            states[2 * n : 2 * n + 2] = lstm_cell(layer, below, *states[2 * n : 2 * n + 2])
            below = states[2 * n]
        seen = below
        if deep_output:
            seen = x + decoder.from_hidden.weight @ below + decoder.from_hidden.bias
            seen = seen + decoder.from_context.weight @ context + decoder.from_context.bias
        logits.append(decoder.head.weight @ seen + decoder.head.bias)
        attention.append(weights)
    return torch.stack(logits), torch.stack(attention)


@pytest.mark.parametrize(("layers", "deep_output"), [(1, True), (3, True), (2, False)])
def test_logits_and_attention_are_the_equations(layers, deep_output):
    decoder, (tokens, places) = make(layers, deep_output=deep_output), inputs()
    logits, attention = decoder(tokens, places)
    assert logits.shape == (2, 3, 5, V) and attention.shape == (2, 3, 5, P)
    for b in range(2):
        for k in range(3):
            expected, weights = reference(decoder, tokens[b, k], places[b], layers, deep_output)
            torch.testing.assert_close(logits[b, k], expected)
            torch.testing.assert_close(attention[b, k], weights)


def test_gradients_are_those_of_finite_differences():
    decoder = make(2)
    tokens, places = torch.randint(V, (1, 2, 3)), torch.randn(1, P, D, dtype=torch.float64)

    def outputs(places, *_):
        return decoder(tokens, places)[0].square().mean()

    places.requires_grad_()
    assert torch.autograd.gradcheck(outputs, (places, *decoder.parameters()))


def test_with_the_gate_shut_the_layers_are_torchs_lstm():
    decoder, (tokens, places) = make(2), inputs()
    nn.init.constant_(decoder.gate.bias, -1e9)
    lstm = nn.LSTM(E + D, H, num_layers=2, batch_first=True).double()
    with torch.no_grad():
        for n, layer in enumerate(decoder.layers):
            for name, value in layer.named_parameters():
                getattr(lstm, f"{name}_l{n}").copy_(value)
    first = decoder.first_state(places.mean(1)).repeat_interleave(3, 0).chunk(4, -1)
    words = decoder.embedding(tokens.flatten(0, 1))  # (6, 5, E)
    blind = torch.cat([words, words.new_zeros(6, 5, D)], -1)
    hidden, cell = torch.stack(first[0::2]), torch.stack(first[1::2])
    expected, _ = lstm(blind, (hidden, cell))
    nn.init.zeros_(decoder.from_context.weight)
    outputs = decoder.read(tokens, places, 1)[0].flatten(0, 1)
    torch.testing.assert_close(
        outputs - words, decoder.from_hidden(expected) + decoder.from_context.bias
    )


def test_dropout_is_for_training_alone():
    decoder, (tokens, places) = make(2, dropout=0.5), inputs()
    assert not torch.equal(decoder(tokens, places)[0], decoder(tokens, places)[0])
    decoder.eval()
    assert torch.equal(decoder(tokens, places)[0], decoder(tokens, places)[0])
