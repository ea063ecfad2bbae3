"""Measures guidance, visual contrast and reranking, compared with plain decoding.

    bash scripts/benchmark.sh decoding [--quick]

An inference copy of BLIP-base at 384 pixels with random weights generates captions of full length,
in fp32 on a CPU and in bf16 on a GPU. "plain", "guidance" and "contrast" use 3 beams. "mmi" chooses
the best of 20 samples by mutual information.
"""

import argparse
import functools

import torch

from benchmarks.captioners import endless_captioner, random_images
from benchmarks.captioning import CPU_SIZES, GPU_SIZES, TINY_SIZES
from benchmarks.measure import Cases, compare
from captioning.models.reranking import Reranker
from decoding import DecodingSettings
from decoding.rerank import Reranking

ROUNDS = 3
# {contender: its decoding settings, in addition to 3 beams}
METHODS = {
    "plain": {},
    "guidance": {"guidance_scale": 2.0},
    "contrast": {"contrastive_alpha": 1.0},
}


def cases(options: argparse.Namespace) -> Cases:
    """Return a case for each batch size and caption length."""
    on_gpu = options.device.type == "cuda"
    ours = endless_captioner(options.quick).to(options.device)
    captioner = ours.for_inference(torch.bfloat16 if on_gpu else torch.float32)

    def measure(batch, length):
        image = random_images(ours, batch).to(options.device)
        works = {}
        for name, method in METHODS.items():
            settings = DecodingSettings(num_beams=3, max_length=length, min_length=5, **method)
            works[name] = functools.partial(captioner.generate_details, image, settings)
        reranker = Reranker(captioner, Reranking("mmi"), options.device)
        settings = DecodingSettings(max_length=length, min_length=5)
        works["mmi"] = functools.partial(reranker.generate_details, image, settings)
        return compare(works, ["plain"], options.rounds, (batch, "captions"))

    batches, lengths = TINY_SIZES if options.quick else GPU_SIZES if on_gpu else CPU_SIZES
    return {
        f"batch {batch}, length {length}": functools.partial(measure, batch, length)
        for batch in batches
        for length in lengths
    }
