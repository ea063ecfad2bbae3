"""The copy for inference: equal captions, autocast's precision, separate weights."""

import pytest
import torch

from BLIP.inference import InferenceLinear
from decoding import DecodingSettings

BEAM = DecodingSettings(num_beams=3, num_return=3, max_length=16, min_length=5)


def test_the_copy_has_the_captions_and_scores_of_the_original(make_captioner):
    captioner = make_captioner(vit_grad_ckpt=True, vit_ckpt_layer=1)
    images = 2 * torch.randn(5, 3, 48, 48)
    expected = captioner.generate_details(images, BEAM)
    quick = captioner.train().for_inference().generate_details(images, BEAM)
    assert len({tuple(captions) for captions in expected.captions}) > 1
    assert quick.token_ids.tolist() == expected.token_ids.tolist()
    torch.testing.assert_close(quick.scores, expected.scores, atol=1e-5, rtol=1e-5)


@pytest.fixture(params=[True, False])
def packs(request, monkeypatch):
    """Whether weights are packed. If not, as on a GPU, autocast would cast the layers."""
    if not request.param:
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    return request.param


def test_bfloat16_is_as_exact_as_autocast(make_captioner, packs):
    if packs and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN has no bfloat16 on this processor")
    captioner, images = make_captioner(), torch.randn(6, 3, 48, 48)
    tokens = torch.randint(5, 20, (6, 9))
    quick = captioner.for_inference(torch.bfloat16)
    assert {m.packed for m in quick.modules() if isinstance(m, InferenceLinear)} == {packs}

    def run(model):
        embeds = model.visual_encoder(images)
        return embeds, model.text_decoder.logits(tokens, embeds)

    with torch.inference_mode():
        exact, ours = run(captioner), run(quick)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            autocast = run(captioner)
    assert ours[0].dtype == torch.float32
    for right, theirs, value in zip(exact, autocast, ours):
        assert 0 < (value - right).abs().mean() < 1.2 * (theirs - right).abs().mean()


def test_float32_layers_stay_float32_under_autocast(make_captioner, packs):
    quick, image = make_captioner().for_inference(torch.bfloat16), torch.randn(1, 3, 48, 48)

    def run():
        embeds = quick.encode(image)
        details = quick.generate_details(image, BEAM)
        return embeds, *quick.score_tokens(embeds, details.token_ids[0, 0]), details.scores

    with torch.inference_mode():
        expected = run()
        assert torch.bfloat16 not in {value.dtype for value in expected}
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.ones(2, 2).mm(torch.ones(2, 2)).dtype == torch.bfloat16
            for right, value in zip(expected, run()):
                assert value.dtype == right.dtype and torch.equal(value, right)


def test_the_original_trains_on_and_leaves_the_copy_as_it_was(make_captioner):
    captioner = make_captioner().train()
    names = list(captioner.state_dict())
    quick = captioner.for_inference()
    assert captioner.training and not quick.training
    assert list(captioner.state_dict()) == names
    x = torch.randn(3, 24)
    before = quick.text_decoder.cls["predictions"].transform["dense"](x)
    optimizer = torch.optim.SGD(captioner.parameters(), lr=1.0)
    captioner(torch.randn(1, 3, 48, 48), [["a red ball"]]).loss.backward()
    optimizer.step()
    after = [c.text_decoder.cls["predictions"].transform["dense"](x) for c in (quick, captioner)]
    torch.testing.assert_close(after[0], before)
    assert not torch.allclose(after[1], before)
