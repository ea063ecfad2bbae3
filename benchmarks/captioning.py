"""Captions a second beside transformers' BLIP with the same weights, and beside the original's way.

    bash scripts/benchmark.sh captioning [--quick]

BLIP-base at 384 pixels with made-up weights, 3 beams. In all rows but the last no caption can end
before its full length. "ours" is the copy for inference, made once before; "as it is" the captioner
itself; "encoder" is the copy's image encoder alone, the floor under all captioning with it. On a
CPU "int8" is a copy in 8 bits, beside fp32. On a GPU "compiled" is a copy whose encoder and step
are, the step into a CUDA graph.
"""

from collections.abc import Iterator
from typing import Any, Optional

import torch
from torch import Tensor

from benchmarks.captioners import NaiveCaptioner, our_captioner, their_captioner
from benchmarks.measure import Work, alternate, program, row, timed
from BLIP import BlipCaptioner, inference_copy
from BLIP.kernels.int8_linear import has_int8
from decoding import DecodingSettings

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
NEVER_ENDS, SOMETIMES_ENDS = -1e4, 1.3  # the bias of the token that ends a caption
SMALL_BATCH = 2  # of which the original's way is measured too
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
COMPILED = DEVICE.type == "cuda"


class Captioners:
    """All contenders; `end_with` before the first use. ours: where there is one already."""

    def __init__(self, tiny: bool, ours: Optional[BlipCaptioner] = None):
        self.ours = ours or our_captioner(tiny).eval().to(DEVICE)
        self.theirs = their_captioner(self.ours).eval().to(DEVICE)
        self.naive = NaiveCaptioner(self.ours)
        self.side = 48 if tiny else 384
        self.copies: dict[str, BlipCaptioner] = {}
        self.seconds_to_copy: dict[str, float] = {}

    def end_with(self, bias: float) -> None:
        """Set the bias of the token that ends a caption, in all weights."""
        end = self.ours.tokenizer.end
        with torch.no_grad():
            self.ours.text_decoder.cls["predictions"].bias[end] = bias
            self.theirs.text_decoder.cls.predictions.bias[end] = bias
        for name in DTYPES:

            def copy(name: str = name) -> None:
                self.copies[name] = inference_copy(self.ours, DTYPES[name])

            self.seconds_to_copy[name] = timed(copy)
        if has_int8(DEVICE):
            self.copies["int8"] = self.ours.for_inference(torch.int8)

    def images(self, batch: int) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        return torch.randn(batch, 3, self.side, self.side, generator=generator).to(DEVICE)

    def autocast(self, precision: str) -> torch.autocast:
        return torch.autocast(DEVICE.type, torch.bfloat16, enabled=precision == "bf16")

    def works(self, precision: str, batch: int, settings: DecodingSettings) -> dict[str, Work]:
        """What is timed, by contender; each returns its token ids but for the encoder."""
        quick, image = self.copies[precision], self.images(batch)
        autocast = self.autocast(precision)

        def tokens(captioner) -> Tensor:
            return captioner.generate_details(image, settings).token_ids[:, 0]

        works = {
            "ours": lambda: tokens(quick),
            "as it is": autocast(lambda: tokens(self.ours)),
            "transformers": autocast(lambda: self.their_tokens(image, settings)),
            "encoder": torch.inference_mode()(lambda: quick.visual_encoder(image)),
            "original, fp32": lambda: tokens(self.naive),
        }
        if precision == "fp32" and "int8" in self.copies:
            works["int8"] = lambda: tokens(self.copies["int8"])
        return works

    @torch.inference_mode()
    def their_tokens(self, image: Tensor, settings: DecodingSettings) -> Tensor:
        prompt = torch.cat([self.ours.prompt_ids, torch.tensor([self.ours.tokenizer.end])])
        prompts = prompt.to(image.device).expand(len(image), -1)  # it cuts the last token
        limits = {"max_length": settings.max_length, "min_length": settings.min_length}
        beams = {"num_beams": settings.num_beams, "do_sample": False}
        return self.theirs.generate(pixel_values=image, input_ids=prompts, **limits, **beams)

    def compiled(self, precision: str) -> BlipCaptioner:
        """A copy whose encoder and step are compiled, the step on a GPU into a CUDA graph."""
        torch._dynamo.reset()  # else those before count towards its limit
        return inference_copy(self.ours, DTYPES[precision], compiled=True)


def compare(
    captioners: Captioners, precision: str, batch: int, length: int, rounds: int, ends: str
) -> dict[str, Any]:
    """One row, after a look at whether ours in fp32 has the tokens of the slow ways."""
    settings = DecodingSettings(num_beams=3, max_length=length, min_length=5)
    works = captioners.works(precision, batch, settings)
    if batch != SMALL_BATCH:
        del works["original, fp32"]
    if COMPILED:
        replayed, image = captioners.compiled(precision), captioners.images(batch)
        works["compiled"] = lambda: replayed.generate_details(image, settings).token_ids[:, 0]
    tokens = works["ours"]()
    expected = works["as it is"]()
    facts = {"precision": precision, "length": length, "agreement": agreement(tokens, expected)}
    if COMPILED:
        facts["agreement_compiled"] = agreement(works["compiled"](), expected)
    if precision == "fp32":
        if batch == SMALL_BATCH:
            expected = works["original, fp32"]()
        if tokens.tolist() != expected.tolist():
            raise SystemExit(f"{precision}, batch {batch}, length {length}: the tokens differ")
    seconds = alternate(works, rounds)
    steps = int((tokens != captioners.ours.tokenizer.pad).sum(1).max())
    steps -= len(captioners.ours.prompt_ids)
    facts["seconds_to_copy"] = captioners.seconds_to_copy[precision]
    name = f"{precision}, batch {batch}, length {length}{ends}"
    line = row(name, seconds, "transformers", items=(batch, "captions"), **facts)
    medians = {name: entry["median"] for name, entry in line["contenders"].items()}
    line["step_ms"] = (medians["ours"] - medians["encoder"]) / max(steps, 1) * 1000
    line["note"] = (
        f"ours: {line['step_ms']:.1f} ms a step, the image's keys included; "
        f"the copy is made in {line['seconds_to_copy']:.2f} s"
    )
    return line


def agreement(tokens: Tensor, expected: Tensor) -> float:
    """The share of captions that are the same."""
    agree = [ids.tolist() == other.tolist() for ids, other in zip(tokens, expected)]
    return sum(agree) / len(agree)


def measure(tiny: bool, rounds: int) -> Iterator[dict[str, Any]]:
    """Every row."""
    lengths = (6, 8) if tiny else (20, 40)
    batches = (SMALL_BATCH, 3 if tiny else 16)
    cases = [(NEVER_ENDS, batch, length, "") for batch in batches for length in lengths] + [
        (SOMETIMES_ENDS, batches[1], lengths[1], ", may end sooner")
    ]
    captioners = Captioners(tiny)
    for end_bias, batch, length, ends in cases:
        captioners.end_with(end_bias)
        for precision in DTYPES:
            yield compare(captioners, precision, batch, length, rounds, ends)


main = program("captioning", __doc__, 2, measure)

if __name__ == "__main__":
    main()
