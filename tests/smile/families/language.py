"""Models of text: decoders, and encoders of words, an image or a sound with a decoder."""

import torch

from tests.smile.families.batches import (
    DECODER,
    IMAGE_TOKEN,
    PAD,
    SIZES,
    TOKENS,
    VOCABULARY,
    build,
    causal_batch,
    pixels,
    targets,
    text,
)

# Three experts, of which two are asked; what their choice costs is asked for.
EXPERTS = {
    **{"num_experts": 3, "num_local_experts": 3, "num_experts_per_tok": 2},
    **{"moe_intermediate_size": 8, "shared_expert_intermediate_size": 8, "decoder_sparse_step": 1},
    **{"output_router_logits": True, "router_aux_loss_coef": 0.3},
}
MAMBA = {"mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 1, "mamba_chunk_size": 4}
GEMMA = {"query_pre_attn_scalar": 8, "sliding_window": 4, "final_logit_softcapping": 0.05}
INKLING = {  # its head has words that are there for alignment alone
    **{"unpadded_vocab_size": 30, "swa_num_attention_heads": 2, "swa_num_key_value_heads": 1},
    **{"swa_head_dim": 8, "d_rel": 4, "rel_extent": 8, "mlp_layer_types": ["dense", "dense"]},
    **{"local_layer_ids": [0], "sliding_window_size": 4},
}
BAMBA = {"mamba_n_heads": 4, "attn_layer_indices": [1], "z_loss_coefficient": 0.2}
DECODERS = {
    "Bamba": {**MAMBA, **BAMBA},
    "Cohere2": {"logit_scale": 7.0},
    "Cohere": {"logit_scale": 7.0},
    "FalconH1": {"mamba_d_ssm": 16, "mamba_n_heads": 2, **MAMBA, "lm_head_multiplier": 7.0},
    "Gemma2": {**GEMMA, "attn_logit_softcapping": 2.0},
    "Gemma3": GEMMA,
    "Granite": {"logits_scaling": 0.2, "attention_multiplier": 0.3},
    "GraniteMoe": {**EXPERTS, "logits_scaling": 0.2},
    "HyperCLOVAX": {"logits_scaling": 5.0},  # multiplies with what Granite divides by
    "Inkling": INKLING,
    "JetMoe": {**EXPERTS, "kv_channels": 8, "aux_loss_coef": 0.3},
    "Llama": {},
    "Mixtral": EXPERTS,
    "Qwen2Moe": EXPERTS,
    "Qwen3": {},
    "Qwen3Moe": EXPERTS,
}
SETTINGS = {f"{name}ForCausalLM": {**DECODER, **more} for name, more in DECODERS.items()}
SETTINGS["GPT2LMHeadModel"] = {"vocab_size": VOCABULARY, **SIZES["gpt2"]}
T5 = {
    **{"vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2},
    **{"num_heads": 2, **TOKENS},
}
BART = {"vocab_size": VOCABULARY, "max_position_embeddings": 32, **SIZES["bart"], **TOKENS}
SWITCH = {  # every second layer has three experts, and both router losses are on
    **{"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "num_experts": 3},
    **{"router_z_loss_coef": 0.1, "router_aux_loss_coef": 0.3, "router_jitter_noise": 0.0},
}


def decoder(name):
    return build(name, causal_batch(), **SETTINGS[name])


def of_words(name, image=None, more=None, **config):
    """A model that encodes words, after `image` places of an image. more: of its batch."""
    words = text()
    batch = {"input_ids": words, "attention_mask": (words != PAD).long(), "labels": targets()}
    if image is not None:
        places = torch.full((3, image), IMAGE_TOKEN)
        for key, front in {"input_ids": places, "attention_mask": torch.ones_like(places)}.items():
            batch[key] = torch.cat([front, batch[key]], 1)
        batch["pixel_values"] = pixels()
    return build(name, {**batch, **(more or {})}, shift=False, **config)


def bart(name):
    """The BART family adds a bias to the head's logits."""
    family = of_words(name, **BART)
    family.model.final_logits_bias.normal_()
    return family


def pix2struct(name):
    sizes = {"hidden_size": 16, "d_kv": 8, "d_ff": 16, "num_heads": 2}
    places = torch.randint(6, (3, 6, 2)).float()  # row, column
    batch = {"flattened_patches": torch.cat([places, torch.randn(3, 6, 12)], 2)}
    batch.update(attention_mask=torch.ones(3, 6), labels=targets())
    return build(
        name,
        batch,
        shift=False,
        text_config={"vocab_size": VOCABULARY, "num_layers": 2, **sizes, **TOKENS},
        vision_config={
            **{**sizes, "num_hidden_layers": 1, "num_attention_heads": 2, "seq_len": 6},
            **{"patch_embed_hidden_size": 12},
        },
    )


def whisper(name):
    batch = {"input_features": torch.randn(3, 8, 20), "labels": targets()}
    places = {"max_source_positions": 10, "max_target_positions": 32}
    sizes = {"num_mel_bins": 8, "vocab_size": VOCABULARY, **places, **SIZES["bart"], **TOKENS}
    return build(name, batch, shift=False, **sizes)


FAMILIES = {
    **dict.fromkeys(SETTINGS, decoder),
    "BartForConditionalGeneration": bart,
    "Blip2ForConditionalGeneration, T5": lambda name: of_words(
        name,
        image=3,
        vision_config=SIZES["vit"],
        qformer_config={**SIZES["bert"], "encoder_hidden_size": 16},
        text_config={"model_type": "t5", **T5},
        num_query_tokens=3,
        image_token_index=IMAGE_TOKEN,
    ),
    "Florence2ForConditionalGeneration": lambda name: of_words(
        name,
        image=5,  # the mean of all places, and four places
        vision_config={
            **{"depths": [1], "patch_size": [4], "patch_stride": [4], "patch_padding": [0]},
            **{"patch_prenorm": [False], "embed_dim": [16], "num_heads": [2]},
            **{"num_groups": [2], "window_size": 2, "drop_path_rate": 0.0},
            **{"projection_dim": 16, "max_position_embeddings": 4},
        },
        text_config={"model_type": "bart", **BART},
        image_token_id=IMAGE_TOKEN,
    ),
    "PegasusForConditionalGeneration": bart,
    "Pix2StructForConditionalGeneration": pix2struct,
    "SwitchTransformersForConditionalGeneration": lambda name: of_words(
        name, more={"output_router_logits": True}, **T5, **SWITCH
    ),
    # Version 1.0's head is the embedding's, and reads scaled states.
    "T5ForConditionalGeneration": lambda name: of_words(name, **T5, tie_word_embeddings=True),
    "T5ForConditionalGeneration, untied": lambda name: of_words(
        name, **T5, tie_word_embeddings=False
    ),
    "T5GemmaForConditionalGeneration": lambda name: of_words(
        name,
        encoder={**DECODER, "query_pre_attn_scalar": 8},
        decoder={**DECODER, **GEMMA, "cross_attention_hidden_size": 16},
        vocab_size=VOCABULARY,
    ),
    "VisionEncoderDecoderModel": lambda name: build(
        name,
        {"pixel_values": pixels(), "labels": targets()},
        shift=False,
        encoder={"model_type": "vit", **SIZES["vit"]},
        decoder={
            **{"model_type": "gpt2", "vocab_size": VOCABULARY, **SIZES["gpt2"]},
            **{"add_cross_attention": True, "is_decoder": True},
        },
        **TOKENS,
    ),
    "WhisperForConditionalGeneration": whisper,
}
