"""The FLOPs and bytes that captioning and training of BLIP need, as phases; see `floors`.

A product of (m, k) and (k, n) is 2 m k n FLOPs. Counted are the products, and the bytes of weights,
images and of the keys and values that a step reads; what lies between, each kernel's inputs and
outputs, is left out, as a perfect program would keep it on the chip.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from BLIP.med import TextDecoder
from BLIP.vit import ImageEncoder
from decoding import DecodingSettings

NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
FLOAT = 4  # bytes
Phase = dict[str, Any]


def weights(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The matrices (out, in) of its linear layers and those of a copy for inference, by name."""
    for name, part in module.named_modules():
        weight = getattr(part, "weight", None)
        if isinstance(weight, Tensor) and weight.dim() == 2 and not isinstance(part, nn.Embedding):
            yield name, weight


def encoder_phase(encoder: ImageEncoder, images: int) -> Phase:
    """All blocks over 1 + P places of so many images."""
    places, width = encoder.pos_embed.shape[1:]
    flops, size = _products(weights(encoder), images * places)
    patch = encoder.patch_embed.proj.weight
    flops[NAMES[patch.dtype]] += 2 * images * (places - 1) * patch.numel()
    dtype = encoder.blocks[0].attn.proj.weight.dtype
    flops[NAMES[dtype]] += len(encoder.blocks) * images * 4 * places * places * width
    pixels = images * 3 * encoder.patch_embed.img_size[0] * encoder.patch_embed.img_size[1]
    return {"flops": dict(flops), "bytes": size + FLOAT * (pixels + images * places * width)}


def captioning_phases(captioner: nn.Module, images: int, settings: DecodingSettings) -> list[Phase]:
    """Of captions of the full length: the encoder, the images' keys, the prompt, then each step."""
    encoder, decoder = captioner.visual_encoder, captioner.text_decoder
    places = encoder.pos_embed.size(1)
    prompt = len(captioner.prompt_ids)
    steps = settings.max_length - prompt - 1
    rows, past = images * settings.num_beams, (prompt + settings.max_length) / 2
    return [
        encoder_phase(encoder, images),
        _image_keys(decoder, images * places),
        _tokens(decoder, images, images * prompt, images, places, prompt / 2),
        {**_tokens(decoder, images, rows, rows, places, past), "times": steps},
    ]


def _image_keys(decoder: TextDecoder, places: int) -> Phase:
    flops, size = _products(_of_image(decoder), places)
    return {"flops": dict(flops), "bytes": size + FLOAT * places * decoder.config.hidden_size}


def _tokens(
    decoder: TextDecoder, images: int, tokens: int, words: int, places: int, past: float
) -> Phase:
    """Tokens that look at `past` before them and at all places of their image; of `words` of them
    the next word is asked."""
    width, layers = decoder.config.hidden_size, len(decoder.layers)
    own = [x for x in weights(decoder) if not _is_image(x[0]) and "cls" not in x[0]]
    flops, size = _products(own, tokens)
    more, head = _products(((n, w) for n, w in weights(decoder) if "cls" in n), words)
    flops.update(more)
    key = decoder.layers[0].crossattention.self["key"].weight
    flops[NAMES[key.dtype]] += layers * tokens * 4 * width * round(places + past)
    read = layers * 2 * width * key.element_size() * (images * places + tokens * past)
    return {"flops": dict(flops), "bytes": size + head + round(read)}


def training_flops(captioner: nn.Module, images: int, tokens: int, longest: int) -> float:
    """A step's, forward and backward, of labels that are all scored: three times the forward's.

    tokens: of all captions together; longest: of one.
    """
    encoder, decoder = captioner.visual_encoder, captioner.text_decoder
    places = encoder.pos_embed.size(1)
    phases = [
        encoder_phase(encoder, images),
        _image_keys(decoder, images * places),
        _tokens(decoder, images, tokens, tokens, places, longest / 2),
    ]
    return 3 * sum(sum(phase["flops"].values()) for phase in phases)


def _is_image(name: str) -> bool:
    return "crossattention.self.key" in name or "crossattention.self.value" in name


def _of_image(decoder: TextDecoder) -> Iterator[tuple[str, Tensor]]:
    return (pair for pair in weights(decoder) if _is_image(pair[0]))


def _products(matrices: Any, rows: int) -> tuple[Counter, int]:
    """FLOPs by precision, and the bytes of the matrices, each read once."""
    flops: Counter = Counter()
    size = 0
    for _, weight in matrices:
        flops[NAMES[weight.dtype]] += 2 * rows * weight.numel()
        size += weight.numel() * weight.element_size()
    return flops, size
