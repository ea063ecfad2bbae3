"""The cost of each token, against the formulas written out in float64."""

import math

import pytest
import torch

from captioning.report.comparison import Comparison, compare
from captioning.report.tokens import (
    Prediction,
    Token,
    choose_caption,
    find_charged,
    find_spared,
    token_figure,
    token_losses,
)


def naive_costs(captioner, image, caption):
    """(label id, own ids, probabilities, MLE cost, SMILE cost) of each token, one at a time."""
    tokenizer = captioner.tokenizer
    ids, _ = tokenizer.encode([captioner.prompt + caption], 40)
    prompt = len(captioner.prompt_ids)
    embedded = captioner.visual_encoder(image)
    own = sorted(set(ids[0, prompt:].tolist()))
    for n in range(prompt, ids.size(1)):
        before = ids[:, :n]
        logits = captioner.text_decoder.logits(before, torch.ones_like(before), embedded)
        scores = logits[0, -1].double().tolist()
        label = ids[0, n].item()
        total = math.log(sum(math.exp(score) for score in scores))
        own_total = math.log(sum(math.exp(scores[i]) for i in own))
        probabilities = [math.exp(score - total) for score in scores]
        yield label, own, probabilities, total - scores[label], own_total - scores[label]


@torch.no_grad()
def test_costs(make_captioner):
    captioner = make_captioner()
    image = torch.randn(1, 3, 48, 48)
    caption = "the man with a red ball and the dogs on a box"
    tokens = token_losses(captioner, image, caption)
    expected = list(naive_costs(captioner, image, caption))
    labels = "the man with a red ball and the dog -s on a box (end)"
    assert " ".join(token.label for token in tokens) == labels and len(expected) == len(tokens)
    words = captioner.tokenizer.token
    for token, (_, own, probabilities, mle, smile) in zip(tokens, expected):
        assert token.mle == pytest.approx(mle, abs=1e-4)
        assert token.smile == pytest.approx(smile, abs=1e-4)
        assert token.probability == pytest.approx(math.exp(-mle), abs=1e-4)
        assert token.caption_probability == pytest.approx(math.exp(-smile), abs=1e-4)
        best = sorted(range(len(probabilities)), key=lambda i: -probabilities[i])[:5]
        for prediction, i in zip(token.predictions, best):
            assert prediction.probability == pytest.approx(probabilities[i], abs=1e-4)
            assert prediction.in_caption == (i in own)
            piece = words(i)
            assert prediction.word in (piece, piece.replace("##", "-"), "(end)")


@torch.no_grad()
def test_a_shifted_first_token_is_a_word(make_captioner, vocabulary, tmp_path):
    pieces = tmp_path / "vocab.txt"
    pieces.write_text(vocabulary.read_text() + "##a\n")
    captioner = make_captioner(tokenizer=str(pieces), first_token_shift=True)
    captioner.text_decoder.cls["predictions"].bias[-3] += 50  # "##a", before [DEC] and [ENC]
    first, *_, last = token_losses(captioner, torch.randn(1, 3, 48, 48), "a dog")
    assert (
        first.label == "a" and first.predictions[0].word == "a" and first.predictions[0].in_caption
    )
    assert first.mle < 1 and last.predictions[0].word == "-a"  # where it would go on with "dog"


def token(label, best, own, mle, smile):
    return Token(label, [Prediction(best, 0.5, own)], 0.1, 0.2, mle, smile)


def test_the_tokens_that_are_told_of():
    tokens = [
        token("a", "one", False, 9.0, 0.0),  # the first word, which first-token MLE charges
        token("red", "crimson", False, 3.0, 0.5),
        token("dark", "navy", False, 2.0, 0.2),
        token("on", "near", True, 2.0, 1.0),
        token("the", "on", True, 3.0, 1.5),
    ]
    assert find_spared(tokens) == (2, tokens[1])
    assert find_charged(tokens) == (5, tokens[4])
    assert find_spared(tokens[:1]) is None and find_charged(tokens[:3]) is None


def test_choose_caption():
    references = {1: ["a b", "a b c d e f"], 2: ["a b c", "a b c d"], 3: ["g h i j", "k"]}
    assert choose_caption(Comparison("test", [], [], references=references)) == (2, "a b c d")


def test_the_run_trained_with_mle_is_shown(runs):
    found = token_figure(compare([runs[1], runs[0]]))
    assert found.run.label == "MLE"
    assert found.tokens[-1].label == "(end)"
    torch.save({"model": {}}, runs[0] / "checkpoint_best.pth")
    assert token_figure(compare([runs[1], runs[0]])).run.label == "SMILE"
