"""The decoders against their equations, written out as loops over numbers in double precision."""

import math

import pytest
import torch
from torch import nn

from baselines.cells import AttentionLSTM, PooledDecoder

V, D, E, H, P = 11, 5, 4, 6, 3


def numbers(parameter):
    return parameter.detach().double().tolist()


def affine(weight, x, bias=None):
    rows = [sum(w * value for w, value in zip(row, x)) for row in weight]
    return rows if bias is None else [r + b for r, b in zip(rows, bias)]


def add(*vectors):
    return [sum(values) for values in zip(*vectors)]


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def mean(places):
    return [sum(column) / len(places) for column in zip(*places)]


def lstm_update(gates, cell):
    """gates: input, forget, candidate, output, each H numbers."""
    i, f, g, o = (gates[n * H : (n + 1) * H] for n in range(4))
    cell = [sigmoid(f[n]) * cell[n] + sigmoid(i[n]) * math.tanh(g[n]) for n in range(H)]
    return [sigmoid(o[n]) * math.tanh(cell[n]) for n in range(H)], cell


def softmax(scores):
    total = sum(math.exp(s) for s in scores)
    return [math.exp(s) / total for s in scores]


def reference(decoder, kind, tokens, places):
    """Logits of one caption and the attention, word by word."""
    p = {name: numbers(value) for name, value in decoder.named_parameters()}
    first = affine(p["from_image.weight"], mean(places), p["from_image.bias"])
    hidden, cell = first, [0.0] * H
    if kind == "attn":
        projected = [affine(p["from_image.weight"], v, p["from_image.bias"]) for v in places]
        hidden = cell = mean(projected)
    logits, attention = [], []
    for token in tokens:
        x = p["embedding.weight"][token]
        if kind == "attn":
            scores = [sum(a * h for a, h in zip(v, hidden)) / math.sqrt(H) for v in projected]
            weights = softmax(scores)
            attended = [sum(w * v[n] for w, v in zip(weights, projected)) for n in range(H)]
            gates = add(
                affine(p["word_gates.weight"], x, p["word_gates.bias"]),
                affine(p["hidden_gates.weight"], hidden),
                affine(p["image_gates.weight"], attended),
            )
            hidden, cell = lstm_update(gates, cell)
            attention.append(weights)
        else:
            a = add(
                affine(p["cell.weight_ih_l0"], x, p["cell.bias_ih_l0"]),
                affine(p["cell.weight_hh_l0"], hidden, p["cell.bias_hh_l0"]),
            )
            if kind == "rnn":
                hidden = [math.tanh(value) for value in a]
            else:
                hidden, cell = lstm_update(a, cell)
        logits.append(affine(p["head.weight"], hidden, p["head.bias"]))
    return logits, attention


def make(kind):
    sizes = (V, D, E, H, 0.0)
    made = AttentionLSTM(*sizes) if kind == "attn" else PooledDecoder(kind, *sizes)
    return made.double()


def inputs(images=2, captions=3, length=5):
    tokens = torch.randint(V, (images, captions, length))
    return tokens, torch.randn(images, P, D, dtype=torch.float64)


@pytest.mark.parametrize("kind", ["rnn", "lstm", "attn"])
def test_logits_are_the_equations(kind):
    decoder, (tokens, places) = make(kind), inputs()
    logits, attention = decoder(tokens, places)
    for b in range(2):
        for k in range(3):
            expected, weights = reference(decoder, kind, tokens[b, k].tolist(), places[b].tolist())
            torch.testing.assert_close(logits[b, k], torch.tensor(expected, dtype=torch.float64))
            if kind == "attn":
                expected = torch.tensor(weights, dtype=torch.float64)
                torch.testing.assert_close(attention[b, k], expected)
    assert (attention is None) == (kind != "attn")


@pytest.mark.parametrize("kind", ["rnn", "lstm", "attn"])
def test_a_later_word_changes_no_earlier_logit(kind):
    decoder, (tokens, places) = make(kind), inputs()
    changed = tokens.clone()
    changed[:, :, 3:] = (changed[:, :, 3:] + 1) % V
    before, after = decoder(tokens, places)[0], decoder(changed, places)[0]
    torch.testing.assert_close(before[:, :, :3], after[:, :, :3])
    assert not torch.allclose(before[:, :, 3], after[:, :, 3])


@pytest.mark.parametrize("kind", ["rnn", "lstm"])
def test_torchs_whole_loop_is_step_after_step(kind):
    decoder, (tokens, places) = make(kind), inputs()
    fused = decoder.read(tokens, places, 1)[0]
    stepwise = super(PooledDecoder, decoder).read(tokens, places, 1)[0]
    torch.testing.assert_close(fused, stepwise)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["rnn", "lstm", "attn"])
def test_under_autocast_on_any_cpu(kind, dtype):
    decoder, (tokens, places) = make(kind).float(), inputs()
    places = places.float()
    expected = decoder(tokens, places)[0]
    with torch.autocast("cpu", dtype):
        found = decoder(tokens, places)[0]
    torch.testing.assert_close(found.float(), expected, rtol=0.02, atol=0.02)
    found.square().sum().backward()
    assert all(w.grad.isfinite().all() and w.grad.any() for w in decoder.parameters())


@pytest.mark.parametrize("kind", ["rnn", "lstm"])
def test_torchs_cells_are_in_full_and_in_the_mode_that_cudnn_differentiates(kind, monkeypatch):
    """Without autocast on any device, whose rule for cuDNN's cells is float16."""
    decoder, (tokens, places) = make(kind).float().eval(), inputs()
    assert not decoder.training and decoder.cell.training
    off = []
    autocast = torch.autocast

    def counted(device, **options):
        off.append((device, options))
        return autocast("cpu", **options)

    monkeypatch.setattr(torch, "autocast", counted)
    decoder.to("meta")
    decoder(tokens.to("meta"), places.float().to("meta"))
    assert off == [("meta", {"enabled": False})]


def test_with_blind_gates_the_attention_lstm_is_torchs_lstm_with_its_gradients():
    decoder, (tokens, places) = make("attn"), inputs()
    nn.init.zeros_(decoder.image_gates.weight)
    lstm = nn.LSTM(E, H, batch_first=True).double()
    with torch.no_grad():
        lstm.weight_ih_l0.copy_(decoder.word_gates.weight)
        lstm.weight_hh_l0.copy_(decoder.hidden_gates.weight)
        lstm.bias_ih_l0.copy_(decoder.word_gates.bias)
        lstm.bias_hh_l0.zero_()
    outputs = decoder.read(tokens, places, 1)[0]
    first = decoder.from_image(places).mean(1).repeat_interleave(3, 0).unsqueeze(0)
    expected, _ = lstm(decoder.embedding(tokens.flatten(0, 1)), (first, first))
    torch.testing.assert_close(outputs.flatten(0, 1), expected)
    outputs.square().sum().backward()
    own = decoder.word_gates.weight.grad.clone()
    expected.square().sum().backward()
    torch.testing.assert_close(own, lstm.weight_ih_l0.grad)


@pytest.mark.parametrize("kind", ["rnn", "lstm", "attn"])
def test_gradients_are_those_of_finite_differences(kind):
    decoder, (tokens, places) = make(kind), inputs(1, 2, 3)
    parameters = tuple(decoder.parameters())

    def outputs(places, *_):
        return decoder(tokens, places)[0]

    places.requires_grad_()
    assert torch.autograd.gradcheck(outputs, (places, *parameters))
