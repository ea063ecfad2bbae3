"""The objective of a batch, captions of a batch; the decoders against their equations."""

import itertools
import math
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F

from baselines.captioner import DECODERS, ClassicCaptioner, coverage_penalty
from baselines.decoder import teacher_forcing
from baselines.vocabulary import Vocabulary
from decoding import DecodingSettings
from smile import Objective, smile_loss
from tests.programs import raises_line
from tests.tiny import classic_config

WORDS = Vocabulary(["a", "dog", "cat", "runs", "sits", "on", "grass"])


class Pixels(torch.nn.Module):
    """Images (B, 3, 2, 2) as annotations (B, 4, 3): a network would only take time."""

    dim = 3

    def forward(self, image):
        return image.flatten(2).transpose(1, 2)


def make(model, objective="mle", **settings):
    chosen = Objective(objective, label_smoothing=0.0)
    made = ClassicCaptioner(classic_config(model, **settings), Pixels(), WORDS, chosen)
    for parameter in made.decoder.parameters():  # so that images and words matter
        torch.nn.init.normal_(parameter, std=0.7)
    return made.eval()


def images(count=3):
    return torch.randn(count, 3, 2, 2)


CAPTIONS = [["a dog runs", "a cat"], ["a zebra sits on grass", "dog"], ["cat runs", "a dog on cat"]]


@pytest.mark.parametrize("model", DECODERS)
@pytest.mark.parametrize("prompt", ["", "a dog on "])
def test_the_loss_is_the_mean_over_all_words_of_each_caption_alone(model, prompt):
    captioner, image = make(model, {"mle": 0.25, "smile": 0.75}, prompt=prompt), images()
    total, count = 0.0, 0
    for b, k in itertools.product(range(3), range(2)):
        ids = WORDS.encode([prompt + CAPTIONS[b][k]], 40)  # no padding, no other image
        given = len(captioner.prompt_ids)
        logits, _ = captioner.decoder(ids[:, :-1], captioner.encoder(image[b : b + 1]))
        logits, labels = logits[:, given - 1 :], ids[:, given:]
        total += 0.25 * F.cross_entropy(logits[0], labels[0], reduction="sum")
        total += 0.75 * smile_loss(logits, labels, first_token_mle=True, reduction="sum")
        count += labels.numel()
    output = captioner(image, CAPTIONS)
    torch.testing.assert_close(output.loss, total / count)
    assert output.tokens == count and output.parts.keys() == {"mle", "smile"}
    output.loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in captioner.parameters())


def test_captions_are_cut_to_max_tokens_and_are_as_many_for_each_image():
    captioner = make("lstm", max_tokens=4)
    _, labels = captioner.predictions(images(1), [["a dog runs on grass"]])
    assert labels.tolist() == WORDS.encode(["a dog"], 9)[:, 1:].tolist()
    for wrong in ([[], []], [["a"]], [["a"], ["dog", "cat"]]):
        with raises_line(ValueError, "captions for 2 images; give each image the same number"):
            captioner(images(2), wrong)


def test_the_coverage_penalty_is_the_mean_over_the_words_of_captions():
    attention = torch.tensor([[[0.75, 0.25], [0.5, 0.5], [0.9, 0.1]], [[1.0, 0], [0, 1], [1, 0]]])
    labelled = torch.tensor([[True, True, False], [True, True, True]])
    expected = (2 * (0.25**2 + 0.25**2) / 2 + 3 * (1**2 + 0) / 2) / 5
    assert coverage_penalty(attention, labelled).item() == pytest.approx(expected)


@pytest.mark.parametrize("model", ["attn", "sat"])
def test_the_penalty_of_parts_weighted_by_their_tokens_is_that_of_the_whole(model):
    captioner, image = make(model, attention_penalty=0.5), images()
    whole = captioner(image, CAPTIONS)
    parts = [captioner(image[b : b + 1], CAPTIONS[b : b + 1]) for b in range(3)]
    for value in (lambda output: output.loss, lambda output: output.parts["attention"]):
        mean = sum(value(part) * part.tokens for part in parts) / whole.tokens
        torch.testing.assert_close(mean, value(whole))
    captioner.config.attention_penalty = 0.0
    plain = captioner(image, CAPTIONS).loss
    torch.testing.assert_close(whole.loss, plain + 0.5 * whole.parts["attention"])


@pytest.mark.parametrize("model", DECODERS)
def test_no_prompt_and_no_caption_has_an_unknown_word(model):
    with raises_line(ValueError, start="prompt is 'a picture of ', but the vocabulary lacks"):
        make(model, prompt="a picture of ")
    captioner = make(model)
    with torch.no_grad():
        captioner.decoder.head.bias[[WORDS.pad, WORDS.start, WORDS.unknown]] = 100.0
    sampled = DecodingSettings(max_length=12, min_length=1, sample=True, num_return=20, top_k=0)
    ids = captioner.generate_details(images(), sampled).token_ids[:, :, 1:]
    ended = (ids == WORDS.end).cumsum(-1) > 0
    assert not ((ids == WORDS.unknown) | (ids == WORDS.start)).any()
    assert not ((ids == WORDS.pad) & ~ended).any()


@pytest.mark.parametrize("model", ["attn", "sat"])
def test_the_attention_map_is_the_attention_before_each_word(model):
    captioner, image = make(model, prompt="a "), images(1)
    ids = WORDS.encode(["a dog runs"], 9)[0]  # start, a, dog, runs, end
    logits, attention_map = captioner.score_tokens(captioner.encoder(image), ids)
    every, attention = captioner.decoder(ids[None, :-1], captioner.encoder(image))
    known = [n for n in range(len(WORDS)) if n not in (WORDS.pad, WORDS.start, WORDS.unknown)]
    torch.testing.assert_close(logits[:, known], every[0, 1:, known])
    torch.testing.assert_close(attention_map, attention[0, 1:])


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


def make_decoder(kind):
    config = classic_config(**KINDS[kind], **SIZES)
    return DECODERS[config.model](config, V, D).double()


def inputs(images=2, captions=3, length=5):
    tokens = torch.randint(V, (images * captions, length))
    return tokens, torch.randn(images, P, D, dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_attention_are_the_equations(kind):
    decoder, (tokens, places) = make_decoder(kind), inputs()
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
    decoder, (tokens, places) = make_decoder(kind).float().eval(), inputs()
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
    decoder, given = make_decoder("sat, 3 layers"), inputs()
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
    decoder, (tokens, places) = make_decoder(kind).train(), inputs(captions=4, length=7)
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
    decoder, places = make_decoder("attn").train(), inputs(1)[1]
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
