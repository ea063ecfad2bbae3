"""transformers' own BLIP with the same weights: the same logits and the same greedy captions."""

import pytest
import torch
import transformers

from decoding import DecodingSettings

pytestmark = pytest.mark.skipif(
    not hasattr(transformers, "BlipForConditionalGeneration"),
    reason=f"transformers {transformers.__version__} has no BLIP",
)

RENAMED = {
    "visual_encoder.cls_token": "vision_model.embeddings.class_embedding",
    "visual_encoder.pos_embed": "vision_model.embeddings.position_embedding",
    "visual_encoder.patch_embed.proj.": "vision_model.embeddings.patch_embedding.",
    "visual_encoder.norm.": "vision_model.post_layernorm.",
    "visual_encoder.blocks.": "vision_model.encoder.layers.",
    ".attn.qkv.": ".self_attn.qkv.",
    ".attn.proj.": ".self_attn.projection.",
    ".norm1.": ".layer_norm1.",
    ".norm2.": ".layer_norm2.",
}


def theirs(captioner, image_size):
    """A BlipForConditionalGeneration of the captioner's sizes with the captioner's weights."""
    bert, vit = captioner.text_decoder.bert, captioner.visual_encoder
    width = bert["embeddings"].word_embeddings.embedding_dim
    config = transformers.BlipConfig(
        text_config={
            "vocab_size": len(captioner.tokenizer),
            "hidden_size": width,
            "encoder_hidden_size": vit.embed_dim,
            "intermediate_size": 2 * width,
            "num_hidden_layers": len(captioner.text_decoder.layers),
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
            "bos_token_id": captioner.tokenizer.start,
            "sep_token_id": captioner.tokenizer.end,
            "eos_token_id": captioner.tokenizer.end,
            "pad_token_id": captioner.tokenizer.pad,
        },
        vision_config={
            "hidden_size": vit.embed_dim,
            "intermediate_size": 4 * vit.embed_dim,
            "num_hidden_layers": len(vit.blocks),
            "num_attention_heads": 4,
            "image_size": image_size,
            "patch_size": 16,
            "layer_norm_eps": 1e-6,
        },
    )
    model = transformers.BlipForConditionalGeneration(config).eval()
    state = {}
    for key, value in captioner.state_dict().items():
        for ours, name in RENAMED.items():
            key = key.replace(ours, name) if "text_decoder" not in key else key
        state[key] = value
    own = model.state_dict()
    assert set(own) <= set(state), sorted(set(own) - set(state))[:5]
    model.load_state_dict({key: state[key] for key in own})
    return model


@pytest.mark.parametrize("image_size", [48, 96])
@torch.no_grad()
def test_same_logits_and_same_greedy_captions(make_captioner, image_size):
    captioner = make_captioner(image_size=image_size)
    model, image = theirs(captioner, image_size), torch.randn(4, 3, image_size, image_size)
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
