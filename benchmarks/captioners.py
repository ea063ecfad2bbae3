"""Builds the captioners to measure: our BLIP, and transformers' BLIP with the same weights."""

from typing import Union

import torch
from torch import Tensor, nn

from BLIP import BlipCaptioner, build_captioner
from BLIP.convert import hf_config, to_hf_names
from captioning.scenes.make import SPECIAL_TOKENS
from smile import Objective

SMOOTHING = 0.1  # label smoothing of MLE, as in BLIP's configurations
PROMPT = ("a", "picture", "of")
# {tiny: number of words of the vocabulary}; BERT's is BLIP's.
VOCAB_SIZE = {True: 60, False: 30522}
# Settings of a tiny BLIP, as for --quick.
TINY = {
    "vit": {"embed_dim": 32, "depth": 2, "num_heads": 4},
    "image_size": 48,
    "med_config": {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
    },
}


def our_captioner(tiny: bool, objective: Union[str, dict[str, float]] = "mle") -> BlipCaptioner:
    """Build BLIP-base at 384 pixels, or a tiny BLIP, with words w8, w9 ... and the same weights."""
    torch.manual_seed(0)
    words = [*SPECIAL_TOKENS, *PROMPT]
    words += [f"w{index}" for index in range(len(words), VOCAB_SIZE[tiny])]
    tokenizer = {"vocab.txt": "\n".join(words)}
    sizes = TINY if tiny else {}
    return build_captioner(tokenizer, objective=Objective(objective, SMOOTHING), **sizes)


def endless_captioner(tiny: bool) -> BlipCaptioner:
    """Build `our_captioner` for evaluation. It never ends a caption before the maximum length."""
    captioner = our_captioner(tiny).eval()
    captioner.text_decoder.cls["predictions"].bias.data[captioner.tokenizer.end] = -1e4
    return captioner


def random_images(captioner: BlipCaptioner, count: int) -> Tensor:
    """Return images of noise, float32 (count, 3, S, S). The noise is always the same."""
    size = captioner.visual_encoder.patch_embed.img_size[0]
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))


def hf_captioner(ours: BlipCaptioner) -> nn.Module:
    """Return transformers' BlipForConditionalGeneration with our weights and hyperparameters.

    Raises ImportError if transformers has no BLIP.
    """
    from transformers import BlipConfig, BlipForConditionalGeneration

    config = BlipConfig(**hf_config(ours))
    theirs = BlipForConditionalGeneration(config)
    theirs.load_state_dict(to_hf_names(ours.state_dict()), strict=False)
    theirs.tie_weights()  # sets the weight of the head, which is missing in the state dict
    return theirs
