"""Captions word by word: probabilities against predictions and scores, pieces joined."""

import pytest
import torch

from baselines import ClassicCaptioner, ImageEncoder, Vocabulary
from captioning.models.score_tokens import END, join_pieces, scored_captions
from decoding import DecodingSettings

BEAM = DecodingSettings(max_length=9, min_length=6, num_beams=2)
SAMPLED = DecodingSettings(max_length=9, min_length=4, sample=True, temperature=0.5, top_k=3)


def by_teacher_forcing(captioner, image, caption):
    """The probability of each token of a caption, read from its text, as in training."""
    logits, labels = captioner.predictions(image, [[caption]])
    return logits[0].double().softmax(-1)[range(labels.size(1)), labels[0]]


@pytest.mark.parametrize("settings", [BEAM, SAMPLED], ids=["beam", "sampled"])
def test_probabilities_are_those_of_teacher_forcing(make_captioner, settings):
    captioner = make_captioner(prompt="a picture ")
    # No special token but the end, and no piece, so that the text has the tokens that were said.
    with torch.no_grad():
        kept = [
            captioner.tokenizer.end,
            *captioner.tokenizer.ids("dog cat red on"),
            captioner.tokenizer.end,
        ]
        bias = captioner.text_decoder.cls["predictions"].bias
        bias += torch.full_like(bias, -100).index_fill(0, torch.tensor(kept), 0)
    image = torch.randn(1, 3, 48, 48)
    (scored,) = scored_captions(captioner, image, settings)
    assert " ".join(word for word in scored.words if word != END) == scored.caption
    expected = by_teacher_forcing(captioner, image, scored.caption)[: len(scored.words)]
    torch.testing.assert_close(scored.probabilities, expected, rtol=1e-4, atol=1e-7)
    assert scored.attention_map.shape == (len(scored.words), 3, 3)


@pytest.mark.parametrize("model", ["lstm", "sat"])
def test_probabilities_of_a_classic_captioner_make_up_its_score(model):
    words = Vocabulary(["a", "dog", "runs"])
    captioner = ClassicCaptioner(model, ImageEncoder("shufflenet_v2_x0_5", grid=2), words).eval()
    settings = DecodingSettings(max_length=7, min_length=4, num_beams=2)
    image = torch.randn(1, 3, 64, 64)
    (scored,) = scored_captions(captioner, image, settings)
    ids = captioner.generate_details(image, settings).token_ids[0, 0]
    length = int((ids != words.end).sum())
    assert scored.probabilities.log().sum().item() == pytest.approx(scored.score * length, rel=1e-5)
    assert (scored.attention_map is None) == (model == "lstm")


def test_pieces_of_a_word_are_one(make_captioner):
    tokenizer = make_captioner().tokenizer
    ids = [*map(tokenizer.bert.token_to_id, ("dog", "##s", "on")), tokenizer.end]
    assert join_pieces(tokenizer, torch.tensor(ids)) == (["dogs", "on", END], [[0, 1], [2], [3]])


def test_a_word_of_two_pieces_has_their_product_and_the_mean_of_their_gaze(make_captioner):
    captioner = make_captioner()
    tokenizer = captioner.tokenizer
    with torch.no_grad():  # nothing but "##s" is ever said
        bias = captioner.text_decoder.cls["predictions"].bias
        bias[tokenizer.bert.token_to_id("##s")] += 8
    settings = DecodingSettings(max_length=8, min_length=0, num_beams=1)
    (scored,) = scored_captions(captioner, torch.randn(1, 3, 48, 48), settings)
    assert scored.words == ["s" * (8 - len(captioner.prompt_ids))]
    total = 8 * scored.score  # greedy: the sum of all log-probabilities over the length
    assert scored.probabilities.log().sum().item() == pytest.approx(total, rel=1e-4)
    torch.testing.assert_close(scored.attention_map.sum((1, 2)), torch.ones(1))


@pytest.mark.parametrize("ends", [True, False])
def test_padding_that_is_said_counts(make_captioner, ends):
    """The captioner can say it: its probability is among those that make up the score."""
    captioner = make_captioner()
    tokenizer = captioner.tokenizer
    with torch.no_grad():
        bias = captioner.text_decoder.cls["predictions"].bias
        bias[tokenizer.pad] += 8
        bias[tokenizer.end] += 16 if ends else -99
    settings = DecodingSettings(max_length=8, min_length=7, num_beams=1)
    image = torch.randn(1, 3, 48, 48)
    (scored,) = scored_captions(captioner, image, settings)
    ids = captioner.generate_details(image, settings).token_ids[0, 0]
    length = int((ids == tokenizer.end).nonzero()[0]) if tokenizer.end in ids.tolist() else 8
    assert ends == (scored.words[-1] == END) and "[PAD]" in scored.words
    assert scored.probabilities.log().sum().item() == pytest.approx(scored.score * length, rel=1e-4)


def test_a_shifted_first_token_is_a_word(make_captioner, vocabulary, tmp_path):
    pieces = tmp_path / "vocab.txt"
    pieces.write_text(vocabulary.read_text() + "##a\n")
    captioner = make_captioner(tokenizer=str(pieces), first_token_shift=True)
    with torch.no_grad():
        head = captioner.text_decoder.cls["predictions"].bias
        head += torch.full_like(head, -100)
        for word, bias in {"##a": 0.0, "dog": 0.0, "cat": 0.0}.items():
            head[captioner.tokenizer.bert.token_to_id(word)] = bias
    said = set()
    for seed in range(8):
        torch.manual_seed(seed)
        (scored,) = scored_captions(captioner, torch.randn(1, 3, 48, 48), SAMPLED)
        words = [word for word in scored.words if word != END]
        assert " ".join(words) == scored.caption and "#" not in scored.caption
        said.add(words[0][0])
    assert "a" in said
