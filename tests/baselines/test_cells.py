"""The decoders against their equations, and scheduled sampling."""

import math
from unittest.mock import Mock

import pytest
import torch

from baselines.captioner import DECODERS
from baselines.decoder import teacher_forcing
from tests.tiny import classic_config

V, D, E, H, A, P = 11, 5, 4, 6, 7, 3
SIZES = {"embed_dim": E, "hidden_dim": H, "attention_dim": A}
KINDS = {
    **{model: {"model": model} for model in ("rnn", "lstm", "attn", "sat")},
    "sat, 3 layers": {"model": "sat", "num_layers": 3},
    "sat, shallow": {"model": "sat", "num_layers": 2, "deep_output": False},
}


def lstm_update(gates, cell):
    i, f, g, o = gates.split(H)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def pooled_step(p, state, x, places):
    hidden, cell = state or (p["from_image.weight"] @ places.mean(0) + p["from_image.bias"], None)
    gates = p["cell.weight_ih_l0"] @ x + p["cell.bias_ih_l0"]
    gates = gates + p["cell.weight_hh_l0"] @ hidden + p["cell.bias_hh_l0"]
    if len(gates) == H:
        return (gates.tanh(), None), gates.tanh(), None
    state = lstm_update(gates, torch.zeros_like(hidden) if cell is None else cell)
    return state, state[0], None


def attention_step(p, state, x, places):
    places = places @ p["from_image.weight"].T + p["from_image.bias"]
    hidden, cell = state or (places.mean(0), places.mean(0))
    weights = torch.stack([place @ hidden / H**0.5 for place in places]).exp()
    weights = weights / weights.sum()
    attended = sum(weight * place for weight, place in zip(weights, places))
    gates = p["word_gates.weight"] @ x + p["word_gates.bias"] + p["hidden_gates.weight"] @ hidden
    state = lstm_update(gates + p["image_gates.weight"] @ attended, cell)
    return state, state[0], weights


def show_attend_tell_step(p, state, x, places):
    first = p["first_state.weight"] @ places.mean(0) + p["first_state.bias"]
    state = list(state or first.split(H))  # hidden and cell of each layer in turn
    hidden, scores = state[-2], []
    for place in places:
        pair = p["key.weight"] @ place + p["key.bias"] + p["query.weight"] @ hidden
        scores.append(p["score.weight"][0] @ pair.tanh())
    weights = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
    context = sum(weight * place for weight, place in zip(weights, places))
    gate = (p["gate.weight"][0] @ hidden + p["gate.bias"][0]).sigmoid()
    below = torch.cat([x, gate * context])
    for n in range(len(state) // 2):
        name = f"layers.{n}."
        gates = p[name + "weight_ih"] @ below + p[name + "bias_ih"]
        gates = gates + p[name + "weight_hh"] @ state[2 * n] + p[name + "bias_hh"]
        state[2 * n : 2 * n + 2] = lstm_update(gates, state[2 * n + 1])
        below = state[2 * n]
    if "from_hidden.weight" in p:
        below = x + p["from_hidden.weight"] @ below + p["from_hidden.bias"]
        below = below + p["from_context.weight"] @ context + p["from_context.bias"]
    return state, below, weights


STEPS = {"rnn": pooled_step, "lstm": pooled_step, "attn": attention_step}


def make(kind):
    config = classic_config(**KINDS[kind], **SIZES)
    return DECODERS[config.model](config, V, D).double()


def inputs(images=2, captions=3, length=5):
    tokens = torch.randint(V, (images * captions, length))
    return tokens, torch.randn(images, P, D, dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_attention_are_the_equations(kind):
    decoder, (tokens, places) = make(kind), inputs()
    logits, attention = decoder(tokens, places)
    assert attention.shape == (6, 5, 0 if kind in ("rnn", "lstm") else P)
    p, step = dict(decoder.named_parameters()), STEPS.get(kind, show_attend_tell_step)
    for r in range(6):  # three captions of each image
        state = None
        for n, token in enumerate(tokens[r]):
            state, seen, weights = step(p, state, p["embedding.weight"][token], places[r // 3])
            torch.testing.assert_close(logits[r, n], p["head.weight"] @ seen + p["head.bias"])
            if weights is not None:
                torch.testing.assert_close(attention[r, n], weights)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["rnn", "lstm", "attn"])
def test_autocast_changes_logits_by_rounding_alone_and_all_weights_learn(kind, dtype):
    """torch's cells run without autocast, and in the mode that cuDNN differentiates."""
    decoder, (tokens, places) = make(kind).float().eval(), inputs()
    expected, modes = decoder(tokens, places.float())[0], set()
    if kind != "attn":
        decoder.cell.register_forward_pre_hook(
            lambda cell, _: modes.add((cell.training, torch.is_autocast_enabled("cpu")))
        )
    with torch.autocast("cpu", dtype):
        found = decoder(tokens, places.float())[0]
    torch.testing.assert_close(found.float(), expected, rtol=0.02, atol=0.02)
    found.square().sum().backward()
    assert all(w.grad.isfinite().all() and w.grad.any() for w in decoder.parameters())
    assert kind == "attn" or modes == {(True, False)}


def test_dropout_acts_in_training_alone():
    decoder, given = make("sat, 3 layers"), inputs()
    decoder.dropout.p = 0.5
    for training in (True, False):
        decoder.train(training)
        assert torch.equal(decoder(*given)[0], decoder(*given)[0]) != training


def test_the_schedules_are_bengios():
    def probabilities(schedule, k, epochs):
        config = classic_config(teacher_forcing=schedule, teacher_forcing_k=k)
        return [teacher_forcing(config, epoch) for epoch in epochs]

    assert probabilities("always", 5, (0, 9)) == [1, 1]
    assert probabilities("never", 5, (0, 9)) == [0, 0]
    assert probabilities("linear", 4, (0, 1, 4, 9)) == [1, 0.75, 0, 0]
    assert probabilities("exponential", 0.5, (0, 1, 3)) == [1, 0.5, 0.125]
    expected = [5 / (5 + math.exp(epoch / 5)) for epoch in range(40)]
    assert probabilities("inverse_sigmoid", 5, range(40)) == pytest.approx(expected)
    assert probabilities("inverse_sigmoid", 1, [100000]) == [pytest.approx(0)]


@pytest.mark.parametrize("kind", ["rnn", "lstm", "attn", "sat"])
def test_without_teacher_forcing_it_reads_its_own_best_words(kind):
    decoder, (tokens, places) = make(kind).train(), inputs(captions=4, length=7)
    decoder.teacher_forcing = 0.0
    logits, _ = decoder(tokens, places, 2)
    read = tokens.clone()
    for n in range(2, 7):  # the first two are given
        read[:, n] = logits[:, n - 2].argmax(-1)
    decoder.teacher_forcing = 1.0
    torch.testing.assert_close(decoder(read, places, 2)[0], logits)
    whole = decoder(tokens, places, 2)[0]
    assert not torch.allclose(whole, logits)
    decoder.eval().teacher_forcing = 0.0
    torch.testing.assert_close(decoder(tokens, places, 2)[0], whole)


def test_words_are_drawn_one_by_one_with_the_probability(monkeypatch):
    decoder, places = make("attn").train(), inputs(1)[1]
    decoder.teacher_forcing = 0.7
    # The guess is always the last word, which no caption has.
    torch.nn.init.zeros_(decoder.head.weight)
    decoder.head.bias.data = torch.arange(V, dtype=torch.float64)
    step = Mock(side_effect=decoder.step)
    monkeypatch.setattr(decoder, "step", step)
    decoder(torch.zeros(500, 9, dtype=torch.int64), places)
    read = torch.stack([given.args[0] for given in step.call_args_list[1:]])  # (8, 500, E)
    own = (read == decoder.embedding.weight[0]).all(-1).double()
    assert own.mean().item() == pytest.approx(0.7, abs=0.03)
    assert (own.mean(1) - 0.7).abs().max() < 0.1  # not one draw for all captions
    assert ((own.mean(0) > 0) & (own.mean(0) < 1)).sum() > 400  # nor one for all words
