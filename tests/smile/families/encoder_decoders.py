"""Models whose decoder reads what an encoder made of words, an image or a sound."""

from functools import partial

import torch
import transformers

from tests.smile.families.batches import (
    DECODER,
    IMAGE_TOKEN,
    PAD,
    SIZES,
    START,
    TOKENS,
    VOCABULARY,
    Family,
    labels_of,
    pixels,
    text,
)

T5 = {
    **{"vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2},
    **{"num_heads": 2, **TOKENS},
}
BART = {"vocab_size": VOCABULARY, "max_position_embeddings": 32, **SIZES["bart"], **TOKENS}


def of_words(model, image=None):
    """Words, after the places of an image where it has some."""
    words = text()
    batch = {"input_ids": words, "attention_mask": (words != PAD).long()}
    family = Family(model, {**batch, "labels": labels_of(text())}, False)
    if image is not None:
        places = torch.full((3, image), IMAGE_TOKEN)
        for key, more in {"input_ids": places, "attention_mask": torch.ones_like(places)}.items():
            batch[key] = torch.cat([more, batch[key]], 1)
        family.batch.update(batch, pixel_values=pixels())
    return family


def t5(tied):
    """Version 1.0's head is the embedding's, and reads scaled states."""
    config = transformers.T5Config(**T5, tie_word_embeddings=tied)
    return of_words(transformers.T5ForConditionalGeneration(config))


def switch():
    """Every second layer chooses one of three experts; both losses of the choice are asked for."""
    config = transformers.SwitchTransformersConfig(
        **T5,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
        num_experts=3,
        router_z_loss_coef=0.1,
        router_aux_loss_coef=0.3,
        router_jitter_noise=0.0,
    )
    family = of_words(transformers.SwitchTransformersForConditionalGeneration(config))
    family.batch["output_router_logits"] = True
    return family


def t5gemma():
    sizes = {**DECODER, "query_pre_attn_scalar": 8}
    config = transformers.T5GemmaConfig(
        encoder={**sizes},
        decoder={**sizes, "cross_attention_hidden_size": 16, "final_logit_softcapping": 0.05},
        vocab_size=VOCABULARY,
    )
    return of_words(transformers.T5GemmaForConditionalGeneration(config))


def bart(name):
    """Logits of the BART family have a bias beside the head, which no checkpoint leaves at 0."""
    config = getattr(transformers, f"{name}Config")(**BART)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    model.final_logits_bias.normal_()
    return of_words(model)


def vision_encoder_decoder():
    decoder = transformers.GPT2Config(
        vocab_size=VOCABULARY, add_cross_attention=True, is_decoder=True, **SIZES["gpt2"]
    )
    model = transformers.VisionEncoderDecoderModel(
        transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
            transformers.ViTConfig(**SIZES["vit"]), decoder
        )
    )
    model.config.decoder_start_token_id, model.config.pad_token_id = START, PAD
    return Family(model, {"pixel_values": pixels(), "labels": labels_of(text())}, False)


def pix2struct():
    sizes = {"hidden_size": 16, "d_kv": 8, "d_ff": 16, "num_heads": 2}
    config = transformers.Pix2StructConfig(
        text_config={"vocab_size": VOCABULARY, "num_layers": 2, **sizes, **TOKENS},
        vision_config={
            **{**sizes, "num_hidden_layers": 1, "num_attention_heads": 2, "seq_len": 6},
            **{"patch_embed_hidden_size": 12},
        },
    )
    config.decoder_start_token_id, config.pad_token_id = START, PAD
    patches = torch.cat(
        [torch.randint(6, (3, 6, 2)).float(), torch.randn(3, 6, 12)], 2
    )  # row, column, pixels
    batch = {
        "flattened_patches": patches,
        "attention_mask": torch.ones(3, 6),
        "labels": labels_of(text()),
    }
    return Family(transformers.Pix2StructForConditionalGeneration(config), batch, False)


def whisper():
    config = transformers.WhisperConfig(
        num_mel_bins=8,
        max_source_positions=10,
        max_target_positions=32,
        vocab_size=VOCABULARY,
        **SIZES["bart"],
        **TOKENS,
    )
    batch = {"input_features": torch.randn(3, 8, 20), "labels": labels_of(text())}
    return Family(transformers.WhisperForConditionalGeneration(config), batch, False)


def blip2_t5():
    model = transformers.Blip2ForConditionalGeneration(
        transformers.Blip2Config(
            vision_config=SIZES["vit"],
            qformer_config={**SIZES["bert"], "encoder_hidden_size": 16},
            text_config={"model_type": "t5", **T5},
            num_query_tokens=3,
            image_token_index=IMAGE_TOKEN,
        )
    )
    return of_words(model, image=3)


def florence2():
    model = transformers.Florence2ForConditionalGeneration(
        transformers.Florence2Config(
            vision_config={
                **{"depths": [1], "patch_size": [4], "patch_stride": [4], "patch_padding": [0]},
                **{"patch_prenorm": [False], "embed_dim": [16], "num_heads": [2]},
                **{"num_groups": [2], "window_size": 2, "drop_path_rate": 0.0},
                **{"projection_dim": 16, "max_position_embeddings": 4},
            },
            text_config={"model_type": "bart", **BART},
            image_token_id=IMAGE_TOKEN,
        )
    )
    return of_words(model, image=5)  # the mean of all places, and four places


FAMILIES = {
    "BartForConditionalGeneration": partial(bart, "Bart"),
    "Blip2ForConditionalGeneration, T5": blip2_t5,
    "Florence2ForConditionalGeneration": florence2,
    "PegasusForConditionalGeneration": partial(bart, "Pegasus"),
    "Pix2StructForConditionalGeneration": pix2struct,
    "SwitchTransformersForConditionalGeneration": switch,
    "T5ForConditionalGeneration": partial(t5, tied=True),
    "T5ForConditionalGeneration, untied": partial(t5, tied=False),
    "T5GemmaForConditionalGeneration": t5gemma,
    "VisionEncoderDecoderModel": vision_encoder_decoder,
    "WhisperForConditionalGeneration": whisper,
}
