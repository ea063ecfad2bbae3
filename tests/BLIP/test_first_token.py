"""First-token shifting: one token of a caption is its piece, in input and label, and read back."""

import pytest
import torch

from BLIP.convert import captioner_of, hf_config, main, save_hf, settings_of
from BLIP.export import StepGraph
from BLIP.weights.checkpoint import CheckpointError
from decoding import DecodingSettings

CAPTIONS = [["a red ball on a box"], ["small dog"], ["the cat"]]


@pytest.fixture
def pieces(vocabulary, tmp_path):
    """Return the vocabulary with a piece of "a" and of "the", and of no other word."""
    path = tmp_path / "vocab.txt"
    path.write_text(vocabulary.read_text() + "##a\n##the\n")
    return str(path)


def test_input_and_label_of_the_first_word_become_its_piece(make_captioner, pieces):
    seen = []
    plain, shifted = (
        make_captioner(tokenizer=pieces, first_token_shift=shift) for shift in (False, True)
    )
    shifted.load_state_dict(plain.state_dict())
    shifted.text_decoder.bert["embeddings"].register_forward_pre_hook(
        lambda module, given: seen.append(given[0])
    )
    image = torch.randn(3, 3, 48, 48)
    logits, labels = shifted.predictions(image, CAPTIONS)
    _, unshifted = plain.predictions(image, CAPTIONS)
    words = [plain.tokenizer.token(number) for number in labels[:, 0].tolist()]
    assert words == ["##a", "small", "##the"]  # small has no piece
    assert torch.equal(labels[:, 1:], unshifted[:, 1:])  # the later "a", too
    start = len(shifted.prompt_ids)
    assert torch.equal(seen[0][:, start], labels[:, 0])
    # The piece is read at its place: an embedding that differs changes what follows.
    assert not torch.allclose(logits[0, 1:], plain.predictions(image, CAPTIONS)[0][0, 1:])
    torch.testing.assert_close(
        shifted(image, CAPTIONS).loss, shifted.text_decoder.objective(logits, labels).loss
    )


@pytest.mark.parametrize(("shift", "read"), [(True, "aaa"), (False, "aa")])
def test_a_generated_piece_is_read_as_a_word(make_captioner, pieces, shift, read):
    captioner = make_captioner(tokenizer=pieces, first_token_shift=shift)
    head = captioner.text_decoder.cls["predictions"]
    piece = captioner.tokenizer.bert.token_to_id("##a")
    with torch.no_grad():
        head.bias[piece] = 1e4
    length = len(captioner.prompt_ids) + 3
    settings = DecodingSettings(num_beams=1, max_length=length, min_length=1)
    # Three pieces in a row: the first is the word "a", the others hang on to it. Left a piece, it
    # would hang on to the prompt, and be cut off with that.
    assert captioner.generate(torch.randn(1, 3, 48, 48), settings) == [read]


def test_a_vocabulary_without_pieces_is_refused(make_captioner, tmp_path, vocabulary):
    path = tmp_path / "vocab.txt"
    path.write_text(vocabulary.read_text().replace("##s\n", ""))
    with pytest.raises(
        ValueError, match="first_token_shift: no word of the vocabulary has a piece"
    ):
        make_captioner(tokenizer=str(path), first_token_shift=True)


@pytest.fixture
def checkpoint(make_captioner, pieces, tmp_path):
    """Return a captioner with a shifted first token, and its checkpoint."""
    captioner = make_captioner(tokenizer=pieces, first_token_shift=True, prompt="picture of the ")
    config = {"tokenizer": pieces, "prompt": "picture of the ", "first_token_shift": True}
    path = tmp_path / "run.pth"
    torch.save(
        {
            "model": captioner.state_dict(),
            "config": {**settings_of(hf_config(captioner)), **config},
        },
        path,
    )
    return captioner, str(path)


def test_it_is_not_exported_to_transformers(checkpoint, tmp_path, capsys):
    captioner, path = checkpoint
    with pytest.raises(CheckpointError, match="trained with first_token_shift"):
        save_hf(captioner, tmp_path / "hf")
    assert main(["to-hf", path, str(tmp_path / "hf")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: the captioner was trained with") and error.count("\n") == 1
    assert not (tmp_path / "hf").exists()


def test_a_checkpoint_is_exported_with_its_own_prompt_and_shift(checkpoint):
    captioner = captioner_of(checkpoint[1])
    assert captioner.prompt == "picture of the " and len(captioner.prompt_ids) == 4
    assert StepGraph(captioner).first_position == 4 and captioner.shift is not None
