"""The copy for inference: equal captions, autocast's precision, separate weights."""

import pytest
import torch

from BLIP.inference import InferenceLinear
from decoding import DecodingSettings

BEAM = DecodingSettings(num_beams=3, num_return=3, max_length=16, min_length=5)


def test_a_copy_has_the_originals_captions_and_stays_when_the_original_trains_on(make_captioner):
    captioner = make_captioner(vit_grad_ckpt=True, vit_ckpt_layer=1)
    images = 2 * torch.randn(5, 3, 48, 48)
    expected = captioner.generate_details(images, BEAM)
    assert len({tuple(captions) for captions in expected.captions}) > 1
    names = list(captioner.state_dict())
    quick = captioner.train().for_inference()
    assert captioner.training and not quick.training
    assert list(captioner.state_dict()) == names
    x, layer = torch.randn(3, 24), "text_decoder.cls.predictions.transform.dense"
    before = quick.get_submodule(layer)(x)
    torch.testing.assert_close(before, captioner.get_submodule(layer)(x))
    found = quick.generate_details(images, BEAM)
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    torch.testing.assert_close(found.scores, expected.scores, atol=1e-5, rtol=1e-5)
    for parameter in captioner.parameters():
        parameter.data.add_(1)
    torch.testing.assert_close(quick.get_submodule(layer)(x), before)
    assert not torch.allclose(captioner.get_submodule(layer)(x), before)


@pytest.mark.parametrize("packs", [True, False])
def test_bfloat16_is_as_exact_as_autocast_and_the_same_within_it(
    make_captioner, monkeypatch, packs
):
    """Where weights are not packed, as on a GPU, autocast would cast the layers."""
    if packs and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN has no bfloat16 on this processor")
    if not packs:
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    captioner, images = make_captioner(), torch.randn(6, 3, 48, 48)
    ids = captioner.generate_details(images, BEAM).token_ids[0, 0]
    quick = captioner.for_inference(torch.bfloat16)
    assert {m.packed for m in quick.modules() if isinstance(m, InferenceLinear)} == {packs}

    def run(model):
        embeds = model.encode(images)
        return embeds, *model.score_tokens(embeds[:1], ids)

    with torch.inference_mode():
        exact, ours = run(captioner), run(quick)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            autocast, within = run(captioner), run(quick)
    for right, theirs, value, same in zip(exact, autocast, ours, within):
        assert value.dtype == same.dtype == torch.float32 and torch.equal(value, same)
        assert 0 < (value - right).abs().mean() < 1.2 * (theirs - right).abs().mean()
