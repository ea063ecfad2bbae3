"""Captioning in 8 bits beside captioning in fp32, by the copies for inference.

    bash scripts/benchmark.sh int8 [--quick]

BLIP-base at 384 pixels with made-up weights, 3 beams, captions of full length, as in
`benchmarks.captioning`. The note tells how many bytes the weights of the copy in 8 bits have.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.captioners import our_captioner
from benchmarks.captioning import NEVER_ENDS, SMALL_BATCH
from benchmarks.measure import alternate, program, row
from BLIP.kernels.inference_linear import InferenceLinear
from BLIP.kernels.int8_linear import HalfEmbedding, HalfLinear, Int8Linear, has_int8
from decoding import DecodingSettings

PEER = "fp32"
BYTES = {Int8Linear: 1, HalfLinear: 2, HalfEmbedding: 2}  # of a number of a weight


def weight_bytes(captioner: nn.Module, copy: nn.Module) -> int:
    """Of all weights of a copy for inference of that captioner, which has them in fp32."""
    total = 0
    for name, parameter in captioner.named_parameters(remove_duplicate=False):
        place, _, kind = name.rpartition(".")
        layer = copy.get_submodule(place)
        usual = layer.dtype.itemsize if isinstance(layer, InferenceLinear) else 4
        size = BYTES.get(type(layer), usual) if kind == "weight" else 4
        total += parameter.numel() * size
    return total


def measure(tiny: bool, rounds: int) -> Iterator[dict[str, Any]]:
    """A row for each batch and length, and after it one of the image encoder alone."""
    if not has_int8(torch.device("cpu")):
        raise SystemExit("this torch has no kernels for 8 bits on this processor")
    ours, generator = our_captioner(tiny).eval(), torch.Generator().manual_seed(1)
    with torch.no_grad():
        ours.text_decoder.cls["predictions"].bias[ours.tokenizer.end] = NEVER_ENDS
    copies = {"int8": ours.for_inference(torch.int8), PEER: ours.for_inference()}
    held = {name: weight_bytes(ours, copy) for name, copy in copies.items()}
    note = f"weights: {held['int8'] / 1e6:.0f} MB, {held['int8'] / held[PEER]:.2f} of fp32's"
    for batch in (SMALL_BATCH, 3 if tiny else 16):
        side = ours.visual_encoder.patch_embed.img_size[0]
        image = torch.randn(batch, 3, side, side, generator=generator)
        for length in (6, 8) if tiny else (20, 40):
            settings = DecodingSettings(num_beams=3, max_length=length, min_length=5)
            works = {}
            for contender, copy in copies.items():
                encode = torch.inference_mode()(copy.visual_encoder)
                works["captions", contender] = partial(copy.generate_details, image, settings)
                works["encoder", contender] = partial(encode, image)
            seconds = alternate(works, rounds)
            name = f"batch {batch}, length {length}"
            for part, item in {"captions": "captions", "encoder": "images"}.items():
                of_part = {contender: seconds[part, contender] for contender in copies}
                named = name if part == "captions" else f"{name}, {part}"
                yield row(named, of_part, PEER, items=(batch, item), note=note)


main = program("int8", __doc__, 3, measure)

if __name__ == "__main__":
    main()
