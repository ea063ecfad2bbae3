"""Measures captions per second of our BLIP, compared with transformers' BLIP.

    bash scripts/benchmark.sh captioning [--quick]

All contenders are BLIP-base at 384 pixels with the same random weights and 3 beams. All captions
have full length. "ours" is a copy by `for_inference`, which is made before timing. "int8" is an
8-bit copy, on a CPU in the rows with fp32. "compiled" has a compiled encoder and decoding steps in
a CUDA graph, on a GPU.
"""

import argparse
import functools
import itertools

import torch

from benchmarks.captioners import endless_captioner, hf_captioner, random_images
from benchmarks.measure import Cases, Row, compare
from BLIP.int8 import has_int8
from decoding import DecodingSettings

ROUNDS = 2
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def sizes(options: argparse.Namespace) -> list[tuple[int, int]]:
    """Return pairs of a batch size and a caption length in tokens."""
    if options.quick:
        return [(2, 6), (3, 8)]
    batches = (64, 1, 256, 8) if options.device.type == "cuda" else (2, 16)
    return [*itertools.product(batches, (20, 40))]


def cases(options: argparse.Namespace) -> Cases:
    """Return a case for each precision, batch size and length; on a GPU also with compilation."""
    device = options.device

    @functools.cache
    def captioners():
        ours = endless_captioner(options.quick).to(device)
        return ours, hf_captioner(ours).eval().to(device)

    @functools.cache
    def copy_in(dtype):
        return captioners()[0].for_inference(dtype)

    def measure(precision: str, batch: int, length: int, compiled: bool) -> Row:
        ours, theirs = captioners()
        dtype, image = DTYPES[precision], random_images(ours, batch).to(device)
        settings = DecodingSettings(num_beams=3, max_length=length, min_length=5)
        # transformers' generate drops the last token of a prompt, here the end token.
        prompt = torch.tensor([*ours.prompt_ids, ours.tokenizer.end]).expand(batch, -1).to(device)

        def generate(captioner):
            return lambda: captioner.generate_details(image, settings)

        @torch.inference_mode()
        @torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
        def their_captions():
            limits = {"max_length": length, "min_length": 5}
            theirs.generate(image, prompt, num_beams=3, do_sample=False, **limits)

        works = {"ours": generate(copy_in(dtype)), "transformers": their_captions}
        if compiled:
            torch._dynamo.reset()  # otherwise earlier rows count towards the recompilation limit
            works["compiled"] = generate(ours.for_inference(dtype, compiled=True))
        if precision == "fp32" and has_int8(device):
            works["int8"] = generate(copy_in(torch.int8))
        return compare(works, ["transformers"], options.rounds, (batch, "captions"))

    return {
        f"{precision}, batch {batch}, length {length}{', compiled' * compiled}": functools.partial(
            measure, precision, batch, length, compiled
        )
        for compiled in ((False, True) if device.type == "cuda" else (False,))
        for precision in DTYPES
        for batch, length in sizes(options)
    }
