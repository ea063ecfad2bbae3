"""Captions a second beside transformers' BLIP with the same weights, and beside the original's way.

    bash scripts/benchmark.sh captioning [--quick]

BLIP-base at 384 pixels with random weights, 3 beams. In all rows but a CPU's last no caption can
end before its full length. "ours" is the copy for inference, made once before; "as it is" the
captioner itself; "encoder" the copy's image encoder alone, the floor under all captioning with it.
On a CPU "int8" is a copy in 8 bits, beside fp32. On a GPU "compiled" is a copy whose encoder and
step are compiled, the step into a CUDA graph.
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
NEVER_ENDS, SOMETIMES_ENDS = -1e4, 1.3  # the bias of the token that ends a caption
TINY, CPU, GPU = ((2, 3), (6, 8)), ((2, 16), (20, 40)), ((64, 1, 256, 8), (20, 40))


class Captioners:
    """All contenders on a device."""

    def __init__(self, tiny: bool, device: torch.device):
        self.device = device
        self.ours = our_captioner(tiny).eval().to(device)
        self.theirs = their_captioner(self.ours).eval().to(device)
        self.naive = NaiveCaptioner(self.ours)
        self.side = 48 if tiny else 384

    @functools.lru_cache(1)  # noqa: B019 - the copies of one bias at a time
    def copies(self, end_bias: float) -> dict[str, Any]:
        """Copies for inference by precision, after setting the bias of the end token in all."""
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
        prompts = prompt.to(image.device).expand(len(image), -1)  # it cuts the last token
        limits = {"max_length": settings.max_length, "min_length": settings.min_length}
        beams = {"num_beams": settings.num_beams, "do_sample": False}
        return self.theirs.generate(pixel_values=image, input_ids=prompts, **limits, **beams)

    def row(
        self, rounds: int, precision: str, batch: int, length: int, bias: float, compiled: bool
    ) -> dict[str, Any]:
        """One row. In fp32 all of ours must make the same tokens, or RuntimeError is raised."""
        settings = DecodingSettings(num_beams=3, max_length=length, min_length=5)
        copies = self.copies(bias)
        generator = torch.Generator().manual_seed(1)
        image = torch.randn(batch, 3, self.side, self.side, generator=generator).to(self.device)
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=precision == "bf16")

        def tokens(captioner: Any) -> Any:
            return lambda: captioner.generate_details(image, settings).token_ids[:, 0]

        works = {
            "ours": tokens(copies[precision]),
            "as it is": autocast(tokens(self.ours)),
            "transformers": autocast(lambda: self.their_tokens(image, settings)),
            "encoder": torch.inference_mode()(lambda: copies[precision].visual_encoder(image)),
        }
        if batch == 2 or self.device.type == "cuda":  # slow on a CPU
            works["original"] = autocast(tokens(self.naive))
        if precision == "fp32" and "int8" in copies:
            works["int8"] = tokens(copies["int8"])
        if compiled:
            torch._dynamo.reset()  # compilations of earlier rows count towards its limit
            works["compiled"] = tokens(inference_copy(self.ours, DTYPES[precision], compiled=True))
        expected = works["as it is"]()
        agreement = {
            who: agreeing(works[who](), expected)
            for who in ("ours", "compiled", "original")
            if who in works
        }
        if precision == "fp32" and set(agreement.values()) != {1.0}:
            raise RuntimeError(f"the tokens differ: {agreement}")
        facts = {"precision": precision, "length": length, "agreement": agreement}
        return compare(works, PEERS, rounds, (batch, "captions"), **facts)


def agreeing(tokens: Tensor, expected: Tensor) -> float:
    """The share of captions that are the same."""
    agree = [ids.tolist() == other.tolist() for ids, other in zip(tokens, expected)]
    return sum(agree) / len(agree)


def cases(options: argparse.Namespace) -> Cases:
    on_gpu = options.device.type == "cuda"
    batches, lengths = TINY if options.quick else GPU if on_gpu else CPU
    captioners = functools.cache(lambda: Captioners(options.quick, options.device))

    def row(*case: Any) -> dict[str, Any]:
        return captioners().row(options.rounds, *case)

    usual = list(itertools.product(DTYPES, batches, lengths, [NEVER_ENDS], [False]))
    if on_gpu:  # compiling takes longer than all other contenders: those rows come last
        usual += [(*case[:4], True) for case in usual]
    else:
        last = batches[-1], lengths[-1], SOMETIMES_ENDS, False
        usual += [(precision, *last) for precision in DTYPES]
    return {
        f"{case[0]}, batch {case[1]}, length {case[2]}"
        + ", may end sooner" * (case[3] == SOMETIMES_ENDS)
        + ", compiled" * case[4]: functools.partial(row, *case)
        for case in usual
    }


main = program("captioning", __doc__, 2, cases)

if __name__ == "__main__":
    sys.exit(main())
