"""Decoders that read an image among the words, each with what its processor gives it."""

import inspect

import torch
import transformers

from tests.smile.families.batches import (
    DECODER,
    IMAGE_END,
    IMAGE_START,
    IMAGE_TOKEN,
    PAD,
    SIZES,
    START,
    VIDEO_TOKEN,
    VOCABULARY,
    after_an_image,
    build,
    causal_batch,
    pixels,
)
from tests.smile.families.language import EXPERTS

SIGLIP = {"model_type": "siglip_vision_model", **SIZES["vit"], "vision_use_head": False}
LLAMA, QWEN2 = ({"model_type": name, **DECODER} for name in ("llama", "qwen2"))
MARKED = {"before": (START, IMAGE_START), "after": (IMAGE_END,)}
ROTARY = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10_000.0}
WIDE = {"hidden_size": 16, "intermediate_size": 16, "out_hidden_size": 16}
QWEN3 = {**WIDE, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
QWEN = {
    "Qwen2VL": {"embed_dim": 16, "hidden_size": 16, "mlp_ratio": 1},
    "Qwen2_5_VL": {**WIDE, "window_size": 8, "fullatt_block_indexes": [0]},
    "Qwen3VL": QWEN3,
    "Qwen3VLMoe": QWEN3,
}


def qwen_vl(name):
    """4 by 4 patches of 2 by 2 pixels in two frames; 2 by 2 patches are a place."""
    batch = after_an_image(4, 3 * 16, 3 * 2 * 2 * 2, **MARKED)
    batch["image_grid_thw"] = torch.tensor([[1, 4, 4]] * 3)
    if "mm_token_type_ids" in inspect.signature(getattr(transformers, name).forward).parameters:
        batch["mm_token_type_ids"] = (batch["input_ids"] == IMAGE_TOKEN).int()
    return build(
        name,
        batch,
        vision_config={
            **{"depth": 1, "num_heads": 2, "patch_size": 2, "temporal_patch_size": 2},
            **{"spatial_merge_size": 2, "in_channels": 3, **QWEN[name.partition("For")[0]]},
        },
        text_config={**DECODER, "rope_scaling": {**ROTARY}, **(EXPERTS if "Moe" in name else {})},
        image_token_id=IMAGE_TOKEN,
        video_token_id=VIDEO_TOKEN,
        vision_start_token_id=IMAGE_START,
        vision_end_token_id=IMAGE_END,
    )


def of_idefics(name):
    """Images have a dimension for several per row, and a mask of pixels."""
    batch = after_an_image(4, 3, 1, 3, 8, 8)
    batch["pixel_attention_mask"] = mask = torch.ones(3, 1, 8, 8, dtype=torch.long)
    mask[1, :, :, 4:] = 0
    return build(
        name,
        batch,
        vision_config={**SIZES["vit"], "patch_size": 2},
        text_config=LLAMA,
        image_token_id=IMAGE_TOKEN,
        scale_factor=2,
        pad_token_id=PAD,
    )


def paligemma(name):
    """Image and question attend to each other; the answer has token type 1."""
    batch = after_an_image(4, before=())
    answered = torch.arange(batch["labels"].size(1)) >= (batch["labels"] != -100).int().argmax(1)[0]
    batch["token_type_ids"] = answered.long() * batch["attention_mask"]
    cap = {"final_logit_softcapping": 0.05, "attn_logit_softcapping": None}
    return build(
        name,
        batch,
        vision_config={**SIGLIP, "projection_dim": 16},
        text_config={"model_type": "gemma2", **DECODER, **cap, "query_pre_attn_scalar": 8},
        image_token_index=IMAGE_TOKEN,
        vocab_size=VOCABULARY,
        projection_dim=16,
        hidden_size=16,
        pad_token_id=PAD,
    )


def gemma3(name):
    """An image's places attend to each other, and have token type 1."""
    batch = after_an_image(4, **MARKED)
    batch["token_type_ids"] = (batch["input_ids"] == IMAGE_TOKEN).long()
    text = {**DECODER, "query_pre_attn_scalar": 8, "sliding_window": 4}
    return build(
        name,
        batch,
        vision_config=SIGLIP,
        text_config={"model_type": "gemma3_text", **text},
        mm_tokens_per_image=4,
        boi_token_index=IMAGE_START,
        eoi_token_index=IMAGE_END,
        image_token_index=IMAGE_TOKEN,
    )


def kosmos2(name):
    batch = after_an_image(3, **MARKED)
    batch["image_embeds_position_mask"] = (batch["input_ids"] == IMAGE_TOKEN).long()
    return build(
        name,
        batch,
        text_config={
            **{"vocab_size": VOCABULARY, "embed_dim": 16, "layers": 2, "ffn_dim": 16},
            **{"attention_heads": 2, "max_position_embeddings": 32, "pad_token_id": PAD},
        },
        vision_config=SIZES["vit"],
        latent_query_num=3,
    )


def mllama(name):
    """The second text layer attends to one or two tiles of an image. The image's token is a row of
    the embedding, but not of the head."""
    batch, tiles = after_an_image(1, 3, 1, 2, 3, 8, 8), torch.tensor([[1, 0], [1, 1], [1, 1]])
    seen = tiles[:, None, None].repeat(1, batch["input_ids"].size(1), 1, 1)
    seen[:, 0] = 0  # what comes before the image
    batch.update(cross_attention_mask=seen, aspect_ratio_mask=tiles[:, None])
    batch.update(aspect_ratio_ids=torch.tensor([[1], [2], [3]]))
    return build(
        name,
        batch,
        vision_config={
            **{"hidden_size": 16, "num_hidden_layers": 1, "num_global_layers": 1},
            **{"attention_heads": 2, "intermediate_size": 16, "vision_output_dim": 32},
            **{"image_size": 8, "patch_size": 4, "max_num_tiles": 2},
            **{"intermediate_layers_indices": [0]},
            **{"supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]]},
        },
        text_config={
            **{key: value for key, value in DECODER.items() if key != "head_dim"},
            **{"cross_attention_layers": [1], "rope_scaling": {"rope_type": "default"}},
            "vocab_size": IMAGE_TOKEN,
        },
        image_token_index=IMAGE_TOKEN,
    )


FAMILIES = {
    "Blip2ForConditionalGeneration": lambda name: build(
        name,
        after_an_image(3, before=()),
        vision_config=SIZES["vit"],
        qformer_config={**SIZES["bert"], "encoder_hidden_size": 16},
        text_config={
            **{"model_type": "opt", "hidden_size": 16, "ffn_dim": 16, "num_hidden_layers": 2},
            **{"num_attention_heads": 2, "vocab_size": VOCABULARY, "word_embed_proj_dim": 16},
            **{"max_position_embeddings": 32, "pad_token_id": PAD},
        },
        num_query_tokens=3,
        image_token_index=IMAGE_TOKEN,
    ),
    "BlipForConditionalGeneration": lambda name: build(
        name,
        {**causal_batch(), "pixel_values": pixels()},
        text_config={"vocab_size": VOCABULARY, "encoder_hidden_size": 16, **SIZES["bert"]},
        vision_config=SIZES["vit"],
    ),
    "Gemma3ForConditionalGeneration": gemma3,
    "GitForCausalLM": lambda name: build(
        name,
        {**causal_batch(), "pixel_values": pixels()},
        before=5,
        vision_config=SIZES["vit"],
        vocab_size=VOCABULARY,
        pad_token_id=PAD,
        **SIZES["bert"],
    ),
    "Idefics3ForConditionalGeneration": of_idefics,
    "InternVLForConditionalGeneration": lambda name: build(
        name,
        after_an_image(4, **MARKED),
        vision_config={**SIZES["vit"], "image_size": [8, 8], "patch_size": [2, 2]},
        text_config=QWEN2,
        image_token_id=IMAGE_TOKEN,
        image_seq_length=4,
    ),
    "Kosmos2ForConditionalGeneration": kosmos2,
    "LlavaForConditionalGeneration": lambda name: build(
        name,
        after_an_image(4, before=()),
        vision_config={"model_type": "clip_vision_model", **SIZES["vit"]},
        text_config=LLAMA,
        image_token_index=IMAGE_TOKEN,
        vision_feature_layer=-1,
    ),
    # A tile of 4 places, the whole image's 4 places, and the ends of the tile's two lines.
    "LlavaOnevisionForConditionalGeneration": lambda name: build(
        name,
        {**after_an_image(4 + 4 + 2, 3, 2, 3, 8, 8), "image_sizes": torch.tensor([[8, 8]] * 3)},
        vision_config=SIGLIP,
        text_config=QWEN2,
        image_token_index=IMAGE_TOKEN,
        video_token_index=VIDEO_TOKEN,
        image_grid_pinpoints=[[8, 8]],
    ),
    "MllamaForConditionalGeneration": mllama,
    "PaliGemmaForConditionalGeneration": paligemma,
    "SmolVLMForConditionalGeneration": of_idefics,
    **{f"{name}ForConditionalGeneration": qwen_vl for name in QWEN},
}
