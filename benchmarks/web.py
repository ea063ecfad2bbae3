"""Measures captions per second of the page of docs/web.md and of Node, compared with torch.

    python -m benchmarks.web [--quick]

BLIP-base at 384 pixels with random weights captions one image at a time, greedily, with 20 tokens.
"page" is the page in Chromium. "page, no threads" is the same page from a server that does not send
the headers for threads. "runner" is `BLIP/onnx_runner.py`; in the row "8 bits", its encoder has
8-bit weights. torch uses 32 bits in all rows. The notes say how many MB the page downloads. Needs
Node 20, web/node_modules and Chromium.
"""

import argparse
import functools
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Optional

import torch

from benchmarks import topic
from benchmarks.captioners import endless_captioner, random_images
from benchmarks.measure import compare
from benchmarks.web_captioners import (
    DTYPES,
    NodeCaptions,
    PageCaptions,
    build_page,
    find_programs,
)
from BLIP.export import export_onnx
from BLIP.onnx_runner import OnnxCaptioner
from captioning.files.reading import read_json
from captioning.runtime.program import exit_code
from decoding import DecodingSettings

ROUNDS = 3
SETTINGS = {"num_beams": 1, "max_length": 20, "min_length": 5}


def cases(options: argparse.Namespace) -> topic.Cases:
    """Return a case for each precision of the page's weights."""
    find_programs()
    temporary = tempfile.TemporaryDirectory()
    folder = Path(temporary.name)
    ours = endless_captioner(options.quick)
    export_onnx(ours, folder / "model", layout="transformers.js")
    for name, int8 in (("runner", False), ("runner, int8", True)):
        export_onnx(ours, folder / name, int8)
    build_page(folder / "model", folder / "page")
    captioner = ours.for_inference(torch.float32)
    image = random_images(ours, 1)
    pixels = image.numpy()
    pixels.tofile(folder / "pixels")

    def measure(dtype):
        """Measure one row. Raises RuntimeError if the contenders' tokens differ in fp32."""
        runner = OnnxCaptioner(folder / ("runner, int8" if dtype == "q8" else "runner"))
        settings, part = DecodingSettings(**SETTINGS), slice(0, pixels.nbytes)
        with ExitStack() as stack:
            node = stack.enter_context(NodeCaptions(folder / "model", SETTINGS, dtype))

            def open_page(profile, threads):
                page = PageCaptions(
                    folder / "page", folder / profile, folder / "pixels", threads=threads
                )
                return stack.enter_context(page)

            page = open_page(f"{dtype} threads", threads=True)
            single = open_page(f"{dtype} plain", threads=False)
            works = {
                "torch": lambda: captioner.generate_details(image, settings).token_ids[0, 0],
                "page": lambda: page.tokens(SETTINGS, dtype, part),
                "page, no threads": lambda: single.tokens(SETTINGS, dtype, part),
                "Node": lambda: node.tokens(pixels[0]),
                "runner": lambda: runner.generate(pixels, **SETTINGS).tokens,
            }
            expected, *others = [list(map(int, work())) for work in works.values()]
            if dtype == "fp32" and any(other != expected for other in others):
                raise RuntimeError("the tokens differ")
            [model] = read_json(folder / "page" / "models.json")["models"]
            files = [path for path in (folder / "page").rglob("*") if path.is_file()]
            shared = sum(path.stat().st_size for path in files if "models" not in path.parts)
            sizes = f"{model['bytes'][dtype] / 2**20:.1f}, and once {shared / 2**20:.1f}"
            row = compare(works, ["torch"], options.rounds, (1, "captions"))
            return {**row, "notes": [f"MB to download: {sizes}"]}

    measure.folder = temporary  # so that the folder exists as long as the cases
    dtypes = list(DTYPES)[: 1 if options.quick else None]
    return {DTYPES[dtype]: functools.partial(measure, dtype) for dtype in dtypes}


def main(argv: Optional[Sequence[str]] = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    return exit_code(lambda: topic.main(["web", *arguments]), "stopped")


if __name__ == "__main__":
    sys.exit(main())
