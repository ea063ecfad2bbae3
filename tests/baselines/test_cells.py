"""The decoders against their equations, computed caption by caption and place by place."""

import pytest
import torch

from baselines.cells import AttentionLSTM, PooledDecoder, ShowAttendTell

V, D, E, H, A, P = 11, 5, 4, 6, 7, 3
KINDS = {
    "rnn": lambda: PooledDecoder("rnn", V, D, E, H, 0.0),
    "lstm": lambda: PooledDecoder("lstm", V, D, E, H, 0.0),
    "attn": lambda: AttentionLSTM(V, D, E, H, 0.0),
    "sat": lambda: ShowAttendTell(V, D, E, H, 0.0, A, num_layers=1),
    "sat, 3 layers": lambda: ShowAttendTell(V, D, E, H, 0.0, A, num_layers=3),
    "sat, shallow": lambda: ShowAttendTell(V, D, E, H, 0.0, A, num_layers=2, deep_output=False),
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
    return KINDS[kind]().double()


def inputs(images=2, captions=3, length=5):
    tokens = torch.randint(V, (images, captions, length))
    return tokens, torch.randn(images, P, D, dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_attention_are_the_equations(kind):
    decoder, (tokens, places) = make(kind), inputs()
    logits, attention = decoder(tokens, places)
    assert (attention is None) == (kind in ("rnn", "lstm"))
    p, step = dict(decoder.named_parameters()), STEPS.get(kind, show_attend_tell_step)
    for b in range(2):
        for k in range(3):
            state = None
            for n, token in enumerate(tokens[b, k]):
                state, seen, weights = step(p, state, p["embedding.weight"][token], places[b])
                expected = p["head.weight"] @ seen + p["head.bias"]
                torch.testing.assert_close(logits[b, k, n], expected)
                if weights is not None:
                    torch.testing.assert_close(attention[b, k, n], weights)


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
def test_torchs_cells_run_without_autocast_and_in_the_mode_that_cudnn_differentiates(kind):
    decoder, (tokens, places) = make(kind).float().eval(), inputs()
    assert not decoder.training and decoder.cell.training
    seen = []
    decoder.cell.register_forward_pre_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    with torch.autocast("cpu"):
        decoder(tokens, places.float())
    assert seen == [False]


def test_dropout_acts_in_training_alone():
    """Between the layers, too."""
    decoder, (tokens, places) = make("sat, 3 layers"), inputs()
    decoder.dropout.p = 0.5
    assert not torch.equal(decoder(tokens, places)[0], decoder(tokens, places)[0])
    decoder.eval()
    assert torch.equal(decoder(tokens, places)[0], decoder(tokens, places)[0])
