"""Captions per second, compared with transformers' BLIP and the original's decoding.

    bash scripts/benchmark.sh captioning [--quick]

All contenders are BLIP-base at 384 pixels with the same random weights and 3 beams. The end token
is suppressed, so that all captions have full length, except in the last two CPU rows, one per
precision. "ours" is `BLIP.inference_copy`, made before timing. "as it is" is the captioner itself.
"encoder" is only the copy's image encoder, a lower bound. On a CPU "int8" is an 8-bit copy. On a
GPU "compiled" is a copy with a compiled encoder and steps in a CUDA graph.
"""

import argparse
import functools
import itertools
import sys
from typing import Any

import torch
from torch import Tensor

from benchmarks.captioners import NaiveCaptioner, our_captioner, their_captioner
from benchmarks.measure import compare
from benchmarks.topic import Cases, program
from BLIP import inference_copy
from BLIP.kernels.int8_linear import has_int8
from decoding import DecodingSettings

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
PEERS = ("transformers", "original")
NEVER_ENDS, SOMETIMES_ENDS = -1e4, 1.3  # the bias of the end token
TINY, CPU, GPU = ((2, 3), (6, 8)), ((2, 16), (20, 40)), ((64, 1, 256, 8), (20, 40))


class Captioners:
    """All contenders, on one device."""

    def __init__(self, tiny: bool, device: torch.device):
        self.device = device
        self.ours = our_captioner(tiny).eval().to(device)
        self.theirs = their_captioner(self.ours).eval().to(device)
        self.naive = NaiveCaptioner(self.ours)
        self.side = 48 if tiny else 384

    @functools.lru_cache(1)  # noqa: B019 - caches the copies of the current bias only
    def copies(self, end_bias: float) -> dict[str, Any]:
        """The inference copies by precision. First sets the end token's bias in all contenders."""
        end = self.ours.tokenizer.end
        with torch.no_grad():
            self.ours.text_decoder.cls["predictions"].bias[end] = end_bias
            self.theirs.text_decoder.cls.predictions.bias[end] = end_bias
        copies = {name: inference_copy(self.ours, dtype) for name, dtype in DTYPES.items()}
        if has_int8(self.device):
            copies["int8"] = self.ours.for_inference(torch.int8)
        return copies

    @torch.inference_mode()
    def their_tokens(self, image: Tensor, settings: DecodingSettings) -> Tensor:
        prompt = torch.cat([self.ours.prompt_ids, torch.tensor([self.ours.tokenizer.end])])
        prompts = prompt.to(image.device).expand(len(image), -1)  # generate drops the last token
        limits = {"max_length": settings.max_length, "min_length": settings.min_length}
        beams = {"num_beams": settings.num_beams, "do_sample": False}
        return self.theirs.generate(pixel_values=image, input_ids=prompts, **limits, **beams)

    def measure(
        self, rounds: int, precision: str, batch: int, length: int, bias: float, compiled: bool
    ) -> dict[str, Any]:
        """One row. Raises RuntimeError if the tokens of our contenders differ in fp32."""
        settings = DecodingSettings(num_beams=3, max_length=length, min_length=5)
        copies = self.copies(bias)
        generator = torch.Generator().manual_seed(1)
        image = torch.randn(batch, 3, self.side, self.side, generator=generator).to(self.device)
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=precision == "bf16")

        def tokens(captioner: Any) -> Any:
            return lambda: captioner.generate_details(image, settings).token_ids[:, 0]

        candidates = {
            "ours": tokens(copies[precision]),
            "as it is": autocast(tokens(self.ours)),
            "transformers": autocast(lambda: self.their_tokens(image, settings)),
            "encoder": torch.inference_mode()(lambda: copies[precision].visual_encoder(image)),
        }
        if batch == 2 or self.device.type == "cuda":  # these contenders are slow on a CPU
            candidates["original"] = autocast(tokens(self.naive))
        if precision == "fp32" and "int8" in copies:
            candidates["int8"] = tokens(copies["int8"])
        if compiled:
            torch._dynamo.reset()  # otherwise earlier rows count towards the recompilation limit
            candidates["compiled"] = tokens(
                inference_copy(self.ours, DTYPES[precision], compiled=True)
            )
        expected = candidates["as it is"]()
        agreement = {
            who: agreeing(candidates[who](), expected)
            for who in ("ours", "compiled", "original")
            if who in candidates
        }
        if precision == "fp32" and set(agreement.values()) != {1.0}:
            raise RuntimeError(f"the tokens differ: {agreement}")
        details = {"precision": precision, "length": length, "agreement": agreement}
        return compare(candidates, PEERS, rounds, (batch, "captions"), **details)


def agreeing(tokens: Tensor, expected: Tensor) -> float:
    """The share of captions with identical token ids."""
    agree = [ids.tolist() == other.tolist() for ids, other in zip(tokens, expected)]
    return sum(agree) / len(agree)


def cases(options: argparse.Namespace) -> Cases:
    on_gpu = options.device.type == "cuda"
    batches, lengths = TINY if options.quick else GPU if on_gpu else CPU
    captioners = functools.cache(lambda: Captioners(options.quick, options.device))

    def measure(*case: Any) -> dict[str, Any]:
        return captioners().measure(options.rounds, *case)

    usual = list(itertools.product(DTYPES, batches, lengths, [NEVER_ENDS], [False]))
    if on_gpu:  # rows with compilation come last, since it takes longer than all other contenders
        usual += [(*case[:4], True) for case in usual]
    else:
        last = batches[-1], lengths[-1], SOMETIMES_ENDS, False
        usual += [(precision, *last) for precision in DTYPES]
    return {
        f"{case[0]}, batch {case[1]}, length {case[2]}"
        + ", may end sooner" * (case[3] == SOMETIMES_ENDS)
        + ", compiled" * case[4]: functools.partial(measure, *case)
        for case in usual
    }


main = program("captioning", __doc__, 2, cases)

if __name__ == "__main__":
    sys.exit(main())
