"""Builds the captioners to measure: our BLIP, and transformers' BLIP with the same weights."""

import tempfile
from pathlib import Path
from typing import Any, Union

import torch
from torch import Tensor, nn

from benchmarks.objective import SMOOTHING
from BLIP import BlipCaptioner, build_captioner
from BLIP.convert import hf_config, to_hf_names
from BLIP.tokenizer import SPECIAL_TOKENS
from BLIP.weights.checkpoint import OPTIONAL_KEYS
from smile import Objective

PROMPT = ("a", "picture", "of")
BERT_VOCAB_SIZE = 30522
# Arguments of `random_captioner` for a tiny BLIP, as for --quick.
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
    """Build BLIP-base at 384 pixels, or a tiny BLIP if `tiny`; see `random_captioner`."""
    sizes = TINY if tiny else {}
    return random_captioner(60 if tiny else BERT_VOCAB_SIZE, objective, **sizes)


def random_captioner(
    vocab_size: int, objective: Union[str, dict[str, float]] = "mle", **sizes: Any
) -> BlipCaptioner:
    """Build a BLIP with random weights, which are always the same, and a dummy vocabulary.

    sizes: arguments of `BLIP.build_captioner`, as in TINY; by default BLIP-base at 384 pixels.
    """
    torch.manual_seed(0)
    words = [*SPECIAL_TOKENS, *PROMPT]
    words += [f"w{index}" for index in range(len(words), vocab_size)]
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Path(folder) / "vocab.txt"
        vocabulary.write_text("\n".join(words) + "\n")
        return build_captioner(str(vocabulary), objective=Objective(objective, SMOOTHING), **sizes)


def endless_captioner(tiny: bool) -> BlipCaptioner:
    """Build `our_captioner` in evaluation mode. Its captions always have the maximum length.

    The bias of the end token is so low that the token is never generated.
    """
    captioner = our_captioner(tiny).eval()
    captioner.text_decoder.cls["predictions"].bias.data[captioner.tokenizer.end] = -1e4
    return captioner


def random_images(captioner: BlipCaptioner, count: int) -> Tensor:
    """Return images of noise, float32 (count, 3, S, S). The noise is always the same."""
    size = captioner.visual_encoder.patch_embed.img_size[0]
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))


def hf_captioner(ours: BlipCaptioner, share: bool = False) -> nn.Module:
    """Return transformers' BlipForConditionalGeneration with our weights and hyperparameters.

    share: whether to use our Parameter objects instead of copies. A step of one model then updates
    both models. Raises ImportError if transformers has no BLIP.
    """
    from transformers import BlipConfig, BlipForConditionalGeneration

    config = BlipConfig(**hf_config(ours, ours.text_decoder.objective.label_smoothing))
    theirs = BlipForConditionalGeneration(config)
    state = to_hf_names(ours.state_dict(keep_vars=share))
    missing, unexpected = theirs.load_state_dict(state, strict=False, assign=share)
    if unexpected or not set(missing) <= set(OPTIONAL_KEYS):
        raise ValueError(f"keys differ from transformers' BLIP: {unexpected or missing}")
    theirs.tie_weights()  # sets the weight of the head, which is missing in the state dict
    return theirs
