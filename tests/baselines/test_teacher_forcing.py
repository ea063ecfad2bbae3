"""How often the decoder reads its captions' own words, and that it does."""

import math

import pytest
import torch

from baselines.cells import AttentionLSTM, PooledDecoder, ShowAttendTell
from baselines.decoder import inverse_sigmoid_k, teacher_forcing


def test_the_schedules_are_bengios():
    assert [teacher_forcing("always", e, 5) for e in (0, 9)] == [1, 1]
    assert [teacher_forcing("never", e, 5) for e in (0, 9)] == [0, 0]
    assert [teacher_forcing("linear", e, 4) for e in (0, 1, 4, 9)] == [1, 0.75, 0, 0]
    assert [teacher_forcing("exponential", e, 0.5) for e in (0, 1, 3)] == [1, 0.5, 0.125]
    for epoch in range(40):
        expected = 5 / (5 + math.exp(epoch / 5))
        assert teacher_forcing("inverse_sigmoid", epoch, 5) == pytest.approx(expected)
    assert teacher_forcing("inverse_sigmoid", 100000, 1) == pytest.approx(0)


@pytest.mark.parametrize("middle", [1e-3, 0.4, 2.5, 15, 30, 1e4])
def test_an_inverse_sigmoid_is_placed_by_its_middle(middle):
    k = inverse_sigmoid_k(middle)
    assert k >= 1
    assert teacher_forcing("inverse_sigmoid", middle, k) == pytest.approx(0.5)


def decoders():
    sizes = {"vocabulary_size": 9, "image_dim": 4, "embed_dim": 5, "hidden_dim": 6, "dropout": 0.0}
    made = {kind: PooledDecoder(kind, **sizes) for kind in ("rnn", "lstm")}
    attending = ShowAttendTell(**sizes, attention_dim=7, num_layers=1)
    return {**made, "attn": AttentionLSTM(**sizes), "sat": attending}


@pytest.mark.parametrize("kind", ["rnn", "lstm", "attn", "sat"])
def test_left_alone_it_reads_its_own_best_guesses(kind):
    decoder, places = decoders()[kind].train(), torch.randn(2, 3, 4)
    tokens = torch.randint(9, (2, 4, 7))
    decoder.teacher_forcing = 0.0
    logits, _ = decoder(tokens, places, 2)
    read = tokens.clone()
    for n in range(2, 7):  # the first two are given
        read[:, :, n] = logits[:, :, n - 2].argmax(-1)
    decoder.teacher_forcing = 1.0
    torch.testing.assert_close(decoder(read, places, 2)[0], logits)
    whole = decoder(tokens, places, 2)[0]
    assert not torch.allclose(whole, logits)
    decoder.eval().teacher_forcing = 0.0
    torch.testing.assert_close(decoder(tokens, places, 2)[0], whole)


def test_words_are_drawn_one_by_one_with_the_probability():
    decoder = decoders()["attn"].train()
    decoder.teacher_forcing = 0.7
    seen = []
    # The guess is always word 8, which no caption has.
    torch.nn.init.zeros_(decoder.head.weight)
    with torch.no_grad():
        decoder.head.bias.copy_(torch.arange(9.0))
    original = decoder.step
    decoder.step = lambda word, *rest: (seen.append(word), original(word, *rest))[1]
    decoder(torch.zeros(1, 500, 9, dtype=torch.int64), torch.randn(1, 3, 4))
    own = torch.stack([(word[0] == decoder.embedding.weight[0]).all(-1) for word in seen[1:]])
    own = own.double()  # (8 words, 500 captions)
    assert own.mean().item() == pytest.approx(0.7, abs=0.03)
    assert (own.mean(1) - 0.7).abs().max() < 0.1  # not one draw for all captions
    assert ((own.mean(0) > 0) & (own.mean(0) < 1)).sum() > 400  # nor one for all words
