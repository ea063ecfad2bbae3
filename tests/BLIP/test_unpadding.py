"""Training on real tokens alone against training on padded rows."""

import pytest
import torch

from BLIP import med
from BLIP.kernels.unpadding import MULTIPLE, Unpadding
from smile import Objective

CAPTIONS = [["a red ball and a small dogs on the box", "dogs"], ["a man", "the large blue box"]]


def test_tokens_are_taken_out_of_padding_and_put_back():
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]])
    unpadding = Unpadding(mask)
    rows = torch.randn(3, 3, 5)
    tokens = unpadding.unpad(rows)
    assert len(tokens) == MULTIPLE
    assert torch.equal(tokens[:6], rows[mask.bool()])
    assert torch.equal(tokens[6:], rows[0, :1].expand(MULTIPLE - 6, 5))
    assert torch.equal(unpadding.unpad(unpadding.pad(tokens)), tokens)
    assert unpadding.pad(tokens).shape == rows.shape


def trained(captioner, image, captions):
    """The output, and the gradients of all weights and of the image."""
    image = image.clone().requires_grad_()
    captioner.zero_grad()
    output = captioner(image, captions)
    output.loss.backward()
    return output, [image.grad, *(p.grad.clone() for p in captioner.parameters())]


@pytest.mark.parametrize("objective", ["smile", {"mle": 0.3, "smile": 0.7}, "mle"])
def test_losses_and_gradients_are_those_of_padded_rows(make_captioner, monkeypatch, objective):
    captioner = make_captioner(objective=Objective(objective, 0.1)).double()
    image = torch.randn(2, 3, 48, 48, dtype=torch.float64)
    lengths = []
    layer = captioner.text_decoder.layers[0]
    layer.output.register_forward_hook(lambda module, given, made: lengths.append(made.shape[:-1]))
    ours, our_gradients = trained(captioner, image, CAPTIONS)
    monkeypatch.setattr(med, "unpadding_of", lambda attention_mask: None)
    padded, padded_gradients = trained(captioner, image, CAPTIONS)
    torch.testing.assert_close(ours, padded, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(our_gradients, padded_gradients, rtol=1e-9, atol=1e-12)
    (tokens,), rows = lengths
    captions = [captioner.prompt + caption for group in CAPTIONS for caption in group]
    ids, attention_mask = captioner.tokenizer.encode(captions, captioner.max_tokens)
    real = int(attention_mask.sum())
    assert tokens == -(-real // MULTIPLE) * MULTIPLE < ids.numel()
    assert rows == ids.shape


def test_where_nothing_is_padded_or_learnt_rows_stay(make_captioner):
    captioner, shapes = make_captioner(), []
    layer = captioner.text_decoder.layers[0]
    layer.output.register_forward_hook(lambda module, given, made: shapes.append(made.dim()))
    image = torch.randn(2, 3, 48, 48)
    captioner(image, [["a dog"], ["a cat"]])
    with torch.no_grad():
        captioner(image, [["a dog"], ["a big cat"]])
    assert shapes == [3, 3]
    captioner(image, [["a dog"], ["a big cat"]])
    assert shapes == [3, 3, 2]


def test_a_capture_of_the_step_has_none(make_captioner):
    """Their number differs from batch to batch."""
    captioner = make_captioner()
    texts = ["a picture of a dog", "a picture of a big dog"]
    tokens, mask = captioner.tokenizer.encode(texts, captioner.max_tokens)
    image = captioner.encode(torch.randn(2, 3, 48, 48)).detach()
    decoder = captioner.text_decoder
    eager = decoder.hidden_states(tokens, mask, image)
    compiled = torch.compile(decoder.hidden_states, backend="eager", fullgraph=True)
    torch.testing.assert_close(
        compiled(tokens, mask, image)[mask.bool()], eager[mask.bool()], rtol=1e-4, atol=1e-5
    )
