"""The captioners that are compared do the same work."""

import pytest
import torch
import transformers

from benchmarks.captioners import our_captioner, their_captioner

pytestmark = pytest.mark.skipif(
    not hasattr(transformers, "BlipForConditionalGeneration"),
    reason=f"transformers {transformers.__version__} has no BLIP",
)


def test_the_peer_has_the_same_loss():
    ours = our_captioner(tiny=True).eval()
    theirs = their_captioner(ours).eval()
    image = torch.randn(2, 3, 48, 48)
    captions = ["w9 w10 w9", "w11"]
    tokens, mask = ours.tokenizer.encode([ours.prompt + caption for caption in captions], 40)
    labels = tokens.masked_fill(mask == 0, -100)
    labels[:, : len(ours.prompt_ids)] = -100
    output = theirs(pixel_values=image, input_ids=tokens, attention_mask=mask, labels=labels)
    torch.testing.assert_close(ours(image, [[caption] for caption in captions]).loss, output.loss)


def test_the_measured_captioner_is_blip_base():
    with torch.device("meta"):
        ours = our_captioner(tiny=False)
    assert len(ours.tokenizer) == 30524
    assert len(ours.state_dict()) == 474
    assert ours.visual_encoder.pos_embed.shape == (1, 577, 768)
