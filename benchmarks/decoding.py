"""Measures guidance and reranking, compared with plain decoding.

    bash scripts/benchmark.sh decoding [--quick]

An inference copy of BLIP-base at 384 pixels with random weights generates captions of full length,
in fp32 on a CPU and in bf16 on a GPU. "plain" and "guidance" use 3 beams. "mmi" chooses the best of
20 samples by mutual information.
"""

import argparse
import dataclasses
import functools

import torch

from benchmarks.captioners import endless_captioner, random_images
from benchmarks.captioning import sizes
from benchmarks.measure import Cases, Row, compare
from captioning.models.reranking import Reranker
from decoding import DecodingSettings
from decoding.rerank import Reranking

ROUNDS = 3


def cases(options: argparse.Namespace) -> Cases:
    """Return a case for each batch size and caption length."""
    device = options.device
    ours = endless_captioner(options.quick).to(device)
    captioner = ours.for_inference(torch.bfloat16 if device.type == "cuda" else torch.float32)
    reranker = Reranker(captioner, Reranking("mmi"), device)

    def measure(batch: int, length: int) -> Row:
        image = random_images(ours, batch).to(device)
        plain = DecodingSettings(num_beams=3, max_length=length, min_length=5)
        guided = dataclasses.replace(plain, guidance_scale=2.0)
        samples = DecodingSettings(max_length=length, min_length=5)
        works = {
            "plain": lambda: captioner.generate_details(image, plain),
            "guidance": lambda: captioner.generate_details(image, guided),
            "mmi": lambda: reranker.generate_details(image, samples),
        }
        return compare(works, ["plain"], options.rounds, (batch, "captions"))

    return {
        f"batch {batch}, length {length}": functools.partial(measure, batch, length)
        for batch, length in sizes(options)
    }
