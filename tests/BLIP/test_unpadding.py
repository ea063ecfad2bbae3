"""Which tokens unpadding keeps, and when; that it changes no gradient is in test_blip.py."""

import torch

from BLIP.kernels.unpadding import MULTIPLE, Unpadding


def test_unpad_and_pad():
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]])
    unpadding = Unpadding(mask)
    rows = torch.randn(3, 3, 5)
    tokens = unpadding.unpad(rows)
    assert len(tokens) == MULTIPLE
    assert torch.equal(tokens[:6], rows[mask.bool()])
    assert torch.equal(tokens[6:], rows[0, :1].expand(MULTIPLE - 6, 5))
    assert torch.equal(unpadding.unpad(unpadding.pad(tokens)), tokens)
    assert unpadding.pad(tokens).shape == rows.shape


def test_rows_keep_their_shape_without_padding_or_gradients(make_captioner):
    captioner, shapes = make_captioner(), []
    layer = captioner.text_decoder.layers[0]
    layer.output.register_forward_hook(lambda module, given, made: shapes.append(made.shape))
    image, padded = torch.randn(2, 3, 48, 48), [["a dog"], ["a cat on a red ball in a large box"]]
    captioner(image, [["a dog"], ["a cat"]])
    with torch.no_grad():
        captioner(image, padded)
    captioner(image, padded)
    assert [len(shape) for shape in shapes] == [3, 3, 2]
    assert shapes[2][0] == 2 * MULTIPLE  # 22 real tokens


def test_compiled_code_does_not_unpad(make_captioner):
    """The number of real tokens differs from batch to batch."""
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
