"""Guidance, visual contrast and reranking beside plain decoding, by an inference copy.

    bash scripts/benchmark.sh decoding [--quick]

BLIP-base at 384 pixels with random weights, captions of full length; fp32 on a CPU, bf16 on a GPU.
Guidance and contrast have 3 beams as plain decoding has; "mmi" is the best of 20 samples by mutual
information.
"""

import argparse
import functools
import sys
from typing import Any

import torch

from benchmarks.captioners import our_captioner
from benchmarks.captioning import CPU, GPU, NEVER_ENDS, TINY
from benchmarks.measure import compare
from benchmarks.topic import Cases, program
from captioning.models.reranking import Reranker
from decoding import DecodingSettings
from decoding.rerank import Reranking

METHODS = {
    "plain": {},
    "guidance": {"guidance_scale": 2.0},
    "contrast": {"contrastive_alpha": 1.0},
}


def cases(options: argparse.Namespace) -> Cases:
    """A row for each batch and length."""
    on_gpu = options.device.type == "cuda"
    ours = our_captioner(options.quick).eval().to(options.device)
    with torch.no_grad():
        ours.text_decoder.cls["predictions"].bias[ours.tokenizer.end] = NEVER_ENDS
    copy = ours.for_inference(torch.bfloat16 if on_gpu else torch.float32)
    side = ours.visual_encoder.patch_embed.img_size[0]

    def measure(batch: int, length: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(1)
        image = torch.randn(batch, 3, side, side, generator=generator).to(options.device)
        works = {}
        for who, method in METHODS.items():
            settings = DecodingSettings(num_beams=3, max_length=length, min_length=5, **method)
            works[who] = functools.partial(copy.generate_details, image, settings)
        reranker = Reranker(copy, Reranking("mmi"), options.device)
        settings = DecodingSettings(max_length=length, min_length=5)
        works["mmi"] = functools.partial(reranker.generate_details, image, settings)
        return compare(works, ["plain"], options.rounds, (batch, "captions"))

    batches, lengths = TINY if options.quick else GPU if on_gpu else CPU
    return {
        f"batch {batch}, length {length}": functools.partial(measure, batch, length)
        for batch in batches
        for length in lengths
    }


main = program("decoding", __doc__, 3, cases)

if __name__ == "__main__":
    sys.exit(main())
