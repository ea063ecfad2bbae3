"""Models whose decoder reads what an encoder made of words, an image or a sound."""

from functools import partial

import torch
import transformers

from tests.smile.families import batches
from tests.smile.families.batches import DECODER, IMAGE_TOKEN, PAD, SIZES, TOKENS, VOCABULARY

T5 = {
    **{"vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2},
    **{"num_heads": 2, **TOKENS},
}
BART = {"vocab_size": VOCABULARY, "max_position_embeddings": 32, **SIZES["bart"], **TOKENS}


def of_words(name, image=None, **config):
    """A model that encodes words, after `image` places of an image."""
    family, words = batches.conditional(name, {}, shift=False, **config), batches.text()
    batch = {"input_ids": words, "attention_mask": (words != PAD).long()}
    batch["labels"] = batches.targets()
    if image is not None:
        places = torch.full((3, image), IMAGE_TOKEN)
        for key, more in {"input_ids": places, "attention_mask": torch.ones_like(places)}.items():
            batch[key] = torch.cat([more, batch[key]], 1)
        batch["pixel_values"] = batches.pixels()
    return family._replace(batch=batch)


def switch():
    """Every second layer has three experts, and both router losses are on."""
    layers = {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "num_experts": 3}
    weights = {"router_z_loss_coef": 0.1, "router_aux_loss_coef": 0.3, "router_jitter_noise": 0.0}
    family = of_words("SwitchTransformers", **T5, **layers, **weights)
    family.batch["output_router_logits"] = True
    return family


def t5gemma():
    sizes = {**DECODER, "query_pre_attn_scalar": 8}
    capped = {"cross_attention_hidden_size": 16, "final_logit_softcapping": 0.05}
    parts = {"encoder": {**sizes}, "decoder": {**sizes, **capped}}
    return of_words("T5Gemma", **parts, vocab_size=VOCABULARY)


def bart(name):
    """The BART family adds a bias to the head's logits."""
    family = of_words(name, **BART)
    family.model.final_logits_bias.normal_()
    return family


def vision_encoder_decoder():
    decoder = transformers.GPT2Config(
        vocab_size=VOCABULARY, add_cross_attention=True, is_decoder=True, **SIZES["gpt2"]
    )
    model = transformers.VisionEncoderDecoderModel(
        transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
            transformers.ViTConfig(**SIZES["vit"]), decoder
        )
    )
    model.config.decoder_start_token_id, model.config.pad_token_id = batches.START, PAD
    batch = {"pixel_values": batches.pixels(), "labels": batches.targets()}
    return batches.Family(model, batch, False)


def pix2struct():
    sizes = {"hidden_size": 16, "d_kv": 8, "d_ff": 16, "num_heads": 2}
    config = transformers.Pix2StructConfig(
        text_config={"vocab_size": VOCABULARY, "num_layers": 2, **sizes, **TOKENS},
        vision_config={
            **{**sizes, "num_hidden_layers": 1, "num_attention_heads": 2, "seq_len": 6},
            **{"patch_embed_hidden_size": 12},
        },
    )
    config.decoder_start_token_id, config.pad_token_id = batches.START, PAD
    places = torch.randint(6, (3, 6, 2)).float()  # row, column
    batch = {"flattened_patches": torch.cat([places, torch.randn(3, 6, 12)], 2)}
    batch.update(attention_mask=torch.ones(3, 6), labels=batches.targets())
    return batches.Family(transformers.Pix2StructForConditionalGeneration(config), batch, False)


def whisper():
    batch = {"input_features": torch.randn(3, 8, 20), "labels": batches.targets()}
    places = {"max_source_positions": 10, "max_target_positions": 32}
    sizes = {"num_mel_bins": 8, "vocab_size": VOCABULARY, **places, **SIZES["bart"], **TOKENS}
    return batches.conditional("Whisper", batch, shift=False, **sizes)


def blip2_t5():
    return of_words(
        "Blip2",
        image=3,
        vision_config=SIZES["vit"],
        qformer_config={**SIZES["bert"], "encoder_hidden_size": 16},
        text_config={"model_type": "t5", **T5},
        num_query_tokens=3,
        image_token_index=IMAGE_TOKEN,
    )


def florence2():
    return of_words(
        "Florence2",
        image=5,  # the mean of all places, and four places
        vision_config={
            **{"depths": [1], "patch_size": [4], "patch_stride": [4], "patch_padding": [0]},
            **{"patch_prenorm": [False], "embed_dim": [16], "num_heads": [2]},
            **{"num_groups": [2], "window_size": 2, "drop_path_rate": 0.0},
            **{"projection_dim": 16, "max_position_embeddings": 4},
        },
        text_config={"model_type": "bart", **BART},
        image_token_id=IMAGE_TOKEN,
    )


FAMILIES = {
    "BartForConditionalGeneration": partial(bart, "Bart"),
    "Blip2ForConditionalGeneration, T5": blip2_t5,
    "Florence2ForConditionalGeneration": florence2,
    "PegasusForConditionalGeneration": partial(bart, "Pegasus"),
    "Pix2StructForConditionalGeneration": pix2struct,
    "SwitchTransformersForConditionalGeneration": switch,
    # Version 1.0's head is the embedding's, and reads scaled states.
    "T5ForConditionalGeneration": partial(of_words, "T5", **T5, tie_word_embeddings=True),
    "T5ForConditionalGeneration, untied": partial(of_words, "T5", **T5, tie_word_embeddings=False),
    "T5GemmaForConditionalGeneration": t5gemma,
    "VisionEncoderDecoderModel": vision_encoder_decoder,
    "WhisperForConditionalGeneration": whisper,
}
