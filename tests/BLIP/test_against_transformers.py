"""transformers' own BLIP with the same weights: the same logits and the same greedy captions."""

import pytest
import torch
import transformers

from BLIP.convert import save_hf
from decoding import DecodingSettings

pytestmark = pytest.mark.skipif(
    not hasattr(transformers, "BlipForConditionalGeneration"),
    reason=f"transformers {transformers.__version__} has no BLIP",
)


@pytest.mark.parametrize("image_size", [48, 96])
@torch.no_grad()
def test_same_logits_and_same_greedy_captions(make_captioner, image_size, tmp_path):
    captioner, image = make_captioner(image_size=image_size), torch.randn(4, 3, *[image_size] * 2)
    save_hf(captioner, tmp_path)
    model = transformers.BlipForConditionalGeneration.from_pretrained(tmp_path).eval()
    texts = ["a picture of a red ball", "the dogs", "a man with a box", "cat"]
    tokens, mask = captioner.tokenizer.encode(texts, 40)
    ours = captioner.text_decoder.logits(tokens, mask, captioner.visual_encoder(image))
    output = model(pixel_values=image, input_ids=tokens, attention_mask=mask)
    torch.testing.assert_close(ours[mask == 1], output.logits[mask == 1], atol=1e-4, rtol=1e-4)

    prompt = captioner.prompt_ids.expand(4, -1)
    expected = model.generate(
        pixel_values=image,
        # It cuts the last token, where a tokeniser would have put [SEP].
        input_ids=torch.cat([prompt, torch.full((4, 1), captioner.tokenizer.end)], dim=1),
        max_length=20,
        min_length=5,
        num_beams=1,
        do_sample=False,
    )
    settings = DecodingSettings(num_beams=1, max_length=20, min_length=5)
    generated = captioner.generate_details(image, settings).token_ids[:, 0]
    assert generated.tolist() == expected[:, : generated.size(1)].tolist()
    assert (expected[:, generated.size(1) :] == captioner.tokenizer.pad).all()
