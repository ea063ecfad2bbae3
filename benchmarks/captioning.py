"""Measures captions per second of our BLIP, compared with transformers' BLIP.

    bash scripts/benchmark.sh captioning [--quick]

All contenders are BLIP-base at 384 pixels with the same random weights and 3 beams. The end token
is suppressed, so that all captions have full length. "ours" is a `BLIP.inference_copy`, which is
made before timing. "int8" is an 8-bit copy; it is measured on a CPU, in the rows with fp32.
"compiled" is a copy with a compiled encoder and with decoding steps in a CUDA graph; it is measured
on a GPU.
"""

import argparse
import functools
import itertools

import torch
from torch import Tensor

from benchmarks.captioners import endless_captioner, hf_captioner, random_images
from benchmarks.measure import Cases, compare
from BLIP import inference_copy
from BLIP.kernels.int8_linear import has_int8
from decoding import DecodingSettings

ROUNDS = 2
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
# (batch sizes, lengths of captions in tokens) for --quick, a CPU and a GPU
TINY_SIZES, CPU_SIZES, GPU_SIZES = (
    ((2, 3), (6, 8)),
    ((2, 16), (20, 40)),
    ((64, 1, 256, 8), (20, 40)),
)


class Captioners:
    """The captioners of all contenders, on one device. tiny: whether sizes are tiny."""

    def __init__(self, tiny: bool, device: torch.device):
        self.device = device
        self.ours = endless_captioner(tiny).to(device)
        self.theirs = hf_captioner(self.ours).eval().to(device)
        dtypes = {**DTYPES, **({"int8": torch.int8} if has_int8(device) else {})}
        self.copies = {name: inference_copy(self.ours, dtype) for name, dtype in dtypes.items()}

    @torch.inference_mode()
    def their_tokens(self, image: Tensor, length: int) -> Tensor:
        prompt = torch.cat([self.ours.prompt_ids, torch.tensor([self.ours.tokenizer.end])])
        # transformers' generate drops the last token of a prompt, here the end token.
        prompts = prompt.to(image.device).expand(len(image), -1)
        return self.theirs.generate(
            pixel_values=image,
            input_ids=prompts,
            num_beams=3,
            do_sample=False,
            max_length=length,
            min_length=5,
        )

    def measure(self, rounds: int, precision: str, batch: int, length: int, compiled: bool) -> dict:
        """Measure one row.

        precision: "bf16" or "fp32". compiled: whether to measure the contender "compiled". Raises
        RuntimeError if it generates other tokens than "ours" in fp32.
        """
        settings = DecodingSettings(num_beams=3, max_length=length, min_length=5)
        image = random_images(self.ours, batch).to(self.device)
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=precision == "bf16")

        def generate(captioner):
            return lambda: captioner.generate_details(image, settings).token_ids[:, 0]

        works = {"ours": generate(self.copies[precision])}
        if compiled:
            torch._dynamo.reset()  # otherwise earlier rows count towards the recompilation limit
            copy = self.ours.for_inference(DTYPES[precision], compiled=True)
            works["compiled"] = generate(copy)
            if precision == "fp32" and not works["compiled"]().equal(works["ours"]()):
                raise RuntimeError("the tokens differ")
        works["transformers"] = autocast(lambda: self.their_tokens(image, length))
        if precision == "fp32" and "int8" in self.copies:
            works["int8"] = generate(self.copies["int8"])
        return compare(works, ["transformers"], rounds, (batch, "captions"))


def cases(options: argparse.Namespace) -> Cases:
    """Return a case for each precision, batch size and length.

    On a GPU, each case is repeated with compilation.
    """
    on_gpu = options.device.type == "cuda"
    sizes = TINY_SIZES if options.quick else GPU_SIZES if on_gpu else CPU_SIZES
    captioners = functools.cache(lambda: Captioners(options.quick, options.device))

    def measure_row(**case):
        return captioners().measure(options.rounds, **case)

    rows = {}
    for compiled in (False, True) if on_gpu else (False,):
        for precision, batch, length in itertools.product(DTYPES, *sizes):
            title = f"{precision}, batch {batch}, length {length}{', compiled' if compiled else ''}"
            rows[title] = functools.partial(
                measure_row, precision=precision, batch=batch, length=length, compiled=compiled
            )
    return rows
