"""A tiny random model of each family of transformers that text is trained with, and a batch for it.

A family is a function that returns the model, its batch with labels, and where the logits of the
labels are: `shift`, whether logits are one ahead of labels, and `before`, how many places of an
image come before the text.
"""

from typing import NamedTuple

import torch
import transformers
from torch import nn

VOCABULARY, IMAGE_TOKEN, START, PAD = 40, 39, 2, 0
SIZES = {
    "bart": {
        **{"d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 16},
        **{"decoder_ffn_dim": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2},
    },
    "bert": {
        **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
        **{"intermediate_size": 16, "max_position_embeddings": 32},
    },
    "vit": {
        **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
        **{"intermediate_size": 16, "image_size": 8, "patch_size": 4},
    },
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32},
}
TOKENS = {
    **{"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": 1},
    **{"decoder_start_token_id": START},
}


class Family(NamedTuple):
    model: nn.Module
    batch: dict
    shift: bool
    before: int = 0


def labels_of(text, prompt=0):
    """Text (B, N) as labels: padding and the prompt's tokens are not scored."""
    labels = text.masked_fill(text == PAD, -100)
    labels[:, :prompt] = -100
    return labels


def text(rows=3, length=7):
    """Sentences of 7, 6 and 5 words that repeat, padded."""
    words = torch.randint(3, 14, (rows, length))
    return words.masked_fill(torch.arange(length) >= length - torch.arange(rows)[:, None], PAD)


def causal_batch():
    tokens = text()
    return {
        "input_ids": tokens,
        "attention_mask": (tokens != PAD).long(),
        "labels": labels_of(tokens, prompt=2),
    }


def t5():
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2, **TOKENS
    )
    model = transformers.T5ForConditionalGeneration(config)
    return Family(model, {"input_ids": text(), "labels": labels_of(text())}, False)


def bart():
    config = transformers.BartConfig(
        vocab_size=VOCABULARY, max_position_embeddings=32, **SIZES["bart"], **TOKENS
    )
    model = transformers.BartForConditionalGeneration(config)
    return Family(model, {"input_ids": text(), "labels": labels_of(text())}, False)


def pegasus():
    config = transformers.PegasusConfig(
        vocab_size=VOCABULARY, max_position_embeddings=32, **SIZES["bart"], **TOKENS
    )
    model = transformers.PegasusForConditionalGeneration(config)
    return Family(model, {"input_ids": text(), "labels": labels_of(text())}, False)


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
    return Family(
        model, {"pixel_values": torch.randn(3, 3, 8, 8), "labels": labels_of(text())}, False
    )


def gpt2():
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=VOCABULARY, **SIZES["gpt2"])
    )
    return Family(model, causal_batch(), True)


def llama_config():
    sizes = {**SIZES["bert"], "num_key_value_heads": 1}
    return transformers.LlamaConfig(vocab_size=VOCABULARY, **sizes, pad_token_id=PAD)


def llama():
    return Family(transformers.LlamaForCausalLM(llama_config()), causal_batch(), True)


def llava():
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**SIZES["vit"]),
        text_config=llama_config(),
        image_token_index=IMAGE_TOKEN,
        vision_feature_layer=-1,
    )
    batch, image = causal_batch(), torch.full((3, 4), IMAGE_TOKEN)
    batch = {
        "input_ids": torch.cat([image, batch["input_ids"]], 1),
        "attention_mask": torch.cat([torch.ones_like(image), batch["attention_mask"]], 1),
        "labels": torch.cat([torch.full_like(image, -100), batch["labels"]], 1),
        "pixel_values": torch.randn(3, 3, 8, 8),
    }
    return Family(transformers.LlavaForConditionalGeneration(config), batch, True)


def blip():
    config = transformers.BlipConfig(
        text_config={"vocab_size": VOCABULARY, "encoder_hidden_size": 16, **SIZES["bert"]},
        vision_config=SIZES["vit"],
    )
    batch = {**causal_batch(), "pixel_values": torch.randn(3, 3, 8, 8)}
    return Family(transformers.BlipForConditionalGeneration(config), batch, True)


def git():
    config = transformers.GitConfig(
        vision_config=SIZES["vit"], vocab_size=VOCABULARY, pad_token_id=PAD, **SIZES["bert"]
    )
    batch = {**causal_batch(), "pixel_values": torch.randn(3, 3, 8, 8)}
    return Family(transformers.GitForCausalLM(config), batch, True, before=5)


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
        vocab_size=VOCABULARY,
        num_mel_bins=8,
        max_source_positions=10,
        max_target_positions=32,
        **SIZES["bart"],
        **TOKENS,
    )
    batch = {"input_features": torch.randn(3, 8, 20), "labels": labels_of(text())}
    return Family(transformers.WhisperForConditionalGeneration(config), batch, False)


FAMILIES = {
    "BartForConditionalGeneration": bart,
    "BlipForConditionalGeneration": blip,
    "GPT2LMHeadModel": gpt2,
    "GitForCausalLM": git,
    "LlamaForCausalLM": llama,
    "LlavaForConditionalGeneration": llava,
    "PegasusForConditionalGeneration": pegasus,
    "Pix2StructForConditionalGeneration": pix2struct,
    "T5ForConditionalGeneration": t5,
    "VisionEncoderDecoderModel": vision_encoder_decoder,
    "WhisperForConditionalGeneration": whisper,
}
HERE = [name for name in FAMILIES if hasattr(transformers, name)]


def make(name):
    """The family in float64, so that losses can be compared; in evaluation mode."""
    family = FAMILIES[name]()
    batch = {k: v.double() if v.is_floating_point() else v for k, v in family.batch.items()}
    for module in family.model.modules():
        if transformers.__version__ == "4.15.0" and hasattr(module, "invert_attention_mask"):
            module.invert_attention_mask = inverted  # its own knows no float64
    return family._replace(model=family.model.double().eval(), batch=batch)


def inverted(mask):
    return (1 - mask[:, None, None, :].double()) * -1e9
