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
from typing import Any, Optional

import torch

from benchmarks import topic
from benchmarks.captioners import endless_captioner, random_images
from benchmarks.measure import Work, compare
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
from captioning.runtime.program import run_program
from decoding import DecodingSettings

ROUNDS = 3
SETTINGS = {"num_beams": 1, "max_length": 20, "min_length": 5}
RUNNERS = {"runner": False, "runner, int8": True}  # {folder of an export: whether it is in int8}


class WebCaptioners:
    """A captioner, and its export and the built page in a temporary folder."""

    def __init__(self, tiny: bool):
        find_programs()
        self._temporary = tempfile.TemporaryDirectory()  # removed with this object
        self.folder = Path(self._temporary.name)
        self.captioner = endless_captioner(tiny)
        export_onnx(self.captioner, self.folder / "model", layout="transformers.js")
        for name, int8 in RUNNERS.items():
            export_onnx(self.captioner, self.folder / name, int8)
        build_page(self.folder / "model", self.folder / "page")
        self.image = random_images(self.captioner, 1)
        self.image.numpy().tofile(self.folder / "pixels")

    def measure(self, rounds: int, dtype: str) -> dict[str, Any]:
        """Measure one row. Raises RuntimeError if the contenders' tokens differ in fp32."""
        with ExitStack() as stack:
            works = self._works(dtype, stack)
            expected, *others = [list(map(int, work())) for work in works.values()]
            if dtype == "fp32" and any(other != expected for other in others):
                raise RuntimeError("the tokens differ")
            row = compare(works, ["torch"], rounds, (1, "captions"))
        return {**row, "notes": [f"MB to download: {self._download_sizes(dtype)}"]}

    def _works(self, dtype: str, stack: ExitStack) -> dict[str, Work]:
        """Return {contender: work}. Programs of contenders end with `stack`."""
        settings, pixels = DecodingSettings(**SETTINGS), self.image.numpy()
        captioner = self.captioner.for_inference(torch.float32)
        runner = OnnxCaptioner(self.folder / ("runner, int8" if dtype == "q8" else "runner"))
        node = stack.enter_context(NodeCaptions(self.folder / "model", SETTINGS, dtype))
        with_threads, without_threads = (
            stack.enter_context(
                PageCaptions(
                    self.folder / "page",
                    self.folder / f"{dtype}, threads {threads}",
                    self.folder / "pixels",
                    threads,
                )
            )
            for threads in (True, False)
        )
        return {
            "torch": lambda: captioner.generate_details(self.image, settings).token_ids[0, 0],
            "page": lambda: with_threads.tokens(SETTINGS, dtype),
            "page, no threads": lambda: without_threads.tokens(SETTINGS, dtype),
            "Node": lambda: node.tokens(pixels[0]),
            "runner": lambda: runner.generate(pixels, **SETTINGS).tokens,
        }

    def _download_sizes(self, dtype: str) -> str:
        """Return the MB of a model's files, and of the files that all models share."""
        [model] = read_json(self.folder / "page" / "models.json")["models"]
        files = [path for path in (self.folder / "page").rglob("*") if path.is_file()]
        shared = sum(path.stat().st_size for path in files if "models" not in path.parts)
        return f"{model['bytes'][dtype] / 2**20:.1f}, and once {shared / 2**20:.1f}"


def cases(options: argparse.Namespace) -> topic.Cases:
    """Return a case for each precision of the page's weights."""
    captioners = WebCaptioners(options.quick)
    dtypes = list(DTYPES)[: 1 if options.quick else None]
    return {
        DTYPES[dtype]: functools.partial(captioners.measure, options.rounds, dtype)
        for dtype in dtypes
    }


def main(argv: Optional[Sequence[str]] = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    return run_program(lambda: topic.main(["web", *arguments]), "stopped")


if __name__ == "__main__":
    sys.exit(main())
