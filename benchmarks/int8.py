"""Captioning with int8 compared with fp32, on a CPU. Both captioners are made by `for_inference`.

    bash scripts/benchmark.sh int8 [--quick]

The captioner is BLIP-base at 384 pixels with random weights, 3 beams and captions of full length,
as in `benchmarks.captioning`. Further rows measure only the image encoder.
"""

import argparse
import functools
import sys
from typing import Any

import torch

from benchmarks.captioners import our_captioner
from benchmarks.captioning import CPU, NEVER_ENDS, TINY
from benchmarks.measure import compare
from benchmarks.topic import Cases, program
from BLIP.kernels.int8_linear import has_int8
from decoding import DecodingSettings


def cases(options: argparse.Namespace) -> Cases:
    """Rows of the image encoder for each batch, and of captioning for each batch and length."""
    if not has_int8(torch.device("cpu")):
        raise SystemExit("this torch has no int8 kernels for this processor")
    ours = our_captioner(options.quick).eval()
    with torch.no_grad():
        ours.text_decoder.cls["predictions"].bias[ours.tokenizer.end] = NEVER_ENDS
    copies = {"int8": ours.for_inference(torch.int8), "fp32": ours.for_inference()}
    side = ours.visual_encoder.patch_embed.img_size[0]

    def measure(batch: int, length: int) -> dict[str, Any]:
        """One row. length: tokens of a caption; 0 measures only the encoder."""
        image = torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(1))
        settings = DecodingSettings(num_beams=3, max_length=length or 1, min_length=min(length, 5))
        works = {
            who: torch.inference_mode()(
                functools.partial(copy.generate_details, image, settings)
                if length
                else functools.partial(copy.visual_encoder, image)
            )
            for who, copy in copies.items()
        }
        return compare(works, ["fp32"], options.rounds, (batch, "captions" if length else "images"))

    batches, lengths = TINY if options.quick else CPU
    return {
        f"batch {batch}, {f'length {length}' if length else 'encoder'}": functools.partial(
            measure, batch, length
        )
        for batch in batches
        for length in (0, *lengths)
    }


main = program("int8", __doc__, 3, cases)

if __name__ == "__main__":
    sys.exit(main())
