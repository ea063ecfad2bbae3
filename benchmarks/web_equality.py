"""Check whether Node and the page of docs/web.md generate the same captions as torch.

    python -m benchmarks.web_equality PHOTOS

A small BLIP with random weights at 384 pixels captions 300 scenes and 20 of the JPEG photos in the
folder PHOTOS, greedily and with 3 beams. Prints a Markdown table. Its numbers are the shares of
captions for which all tokens equal torch's. In the rows "own resizing", the page itself decodes and
resizes the image files. In the other rows, it gets the same pixels as torch, resized by Pillow.
Needs Node 20, web/node_modules and Chromium.
"""

import argparse
import itertools
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Optional

import numpy as np
import torch

from benchmarks.captioners import BERT_VOCAB_SIZE, TINY, random_captioner
from benchmarks.web_captioners import (
    DTYPES,
    NodeCaptions,
    PageCaptions,
    build_page,
    find_programs,
)
from BLIP import BlipCaptioner
from BLIP.export import export_onnx
from captioning.data.image import evaluation_transform, load_image, resize
from captioning.report.comparison_table import to_markdown
from captioning.runtime.errors import UserError
from captioning.runtime.program import exit_code
from captioning.scenes.make import make_scenes
from decoding import DecodingSettings, until_end

# Arguments of `random_captioner` for the small BLIP.
SIZES = {
    "vit": {"embed_dim": 64, "depth": 2, "num_heads": 4, "initializer_range": 0.3},
    "image_size": 384,
    "med_config": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,
    },
}
END = 9.0  # the bias of the end token; it lets captions end early, so that their lengths differ
SETTINGS = {
    name: {"num_beams": beams, "max_length": 20, "min_length": 6}
    for name, beams in (("greedy", 1), ("beam 3", 3))
}
Rows = list[list[int]]  # the tokens of each image's caption


def torch_rows(captioner: BlipCaptioner, images: np.ndarray, settings: dict) -> Rows:
    """Return torch's tokens for each image, up to and including the end token.

    images: float32 (N, 3, S, S).
    """
    rows = []
    for batch in torch.from_numpy(images).split(8):
        for tokens in captioner.generate_details(batch, DecodingSettings(**settings)).token_ids:
            rows.append(tokens[0][until_end(tokens[0], captioner.tokenizer.end)].tolist())
    return rows


def contenders(
    folder: Path, page: PageCaptions, images: np.ndarray
) -> Iterator[tuple[str, str, Rows]]:
    """Caption the images in each way. Yield (row of the table, decoding, tokens) for each way.

    folder: has the export in `model`. images: float32 (N, 3, S, S).
    """
    size = images[0].nbytes
    parts = [slice(size * index, size * (index + 1)) for index in range(len(images))]
    for (dtype, bits), (decoding, settings) in itertools.product(DTYPES.items(), SETTINGS.items()):
        with NodeCaptions(folder / "model", settings, dtype) as node:
            yield f"Node, {bits}", decoding, [node.tokens(image) for image in images]
        rows = [page.tokens(settings, dtype, image=part) for part in parts]
        yield f"Chromium, {bits}", decoding, rows
        if dtype == "fp32":
            rows = [page.tokens(settings, photo=index) for index in range(len(images))]
            yield f"Chromium, {bits}, own resizing", decoding, rows


def pixel_difference(page: PageCaptions, paths: Sequence[Path], side: int) -> tuple[int, float]:
    """Return the largest and the mean difference between pixels resized by the page and by Pillow.

    Pixels are from 0 to 255. paths: the photos of `page`. side: width and height after resizing.
    """
    largest, total = 0, 0.0
    for index, path in enumerate(paths):
        expected = np.asarray(resize(side)(load_image(path)), dtype=np.int64)
        difference = np.abs(page.pixels(index, side) - expected)
        largest, total = max(largest, int(difference.max())), total + difference.mean()
    return largest, total / len(paths)


def compare(captioner: BlipCaptioner, paths: Sequence[Path], folder: Path) -> Iterator[str]:
    """Compare all ways to caption the images. Yield the lines to print.

    paths: the image files. folder: a temporary folder.
    """
    transform = evaluation_transform(captioner.visual_encoder.patch_embed.img_size[0])
    images = np.stack([transform(load_image(path)).numpy() for path in paths])
    images.tofile(folder / "pixels")
    expected = {name: torch_rows(captioner, images, each) for name, each in SETTINGS.items()}
    export_onnx(captioner, folder / "model", layout="transformers.js")
    build_page(folder / "model", folder / "page")
    with PageCaptions(folder / "page", folder / "profile", folder / "pixels", paths) as page:
        largest, mean = pixel_difference(page, paths, images.shape[-1])
        distinct = [len(set(map(tuple, rows))) for rows in expected.values()]
        yield f"{len(paths)} images; torch's different captions: {distinct}"
        yield f"own resizing: pixels differ by {largest} of 255 at most, {mean:.5f} in the mean"
        shares = defaultdict(list)
        for name, decoding, rows in contenders(folder, page, images):
            equal = [ours == theirs for ours, theirs in zip(rows, expected[decoding])]
            shares[name].append(f"{100 * np.mean(equal):.1f}")
        table = to_markdown(SETTINGS, ([name, *cells] for name, cells in shares.items()))
        yield f"equal captions, %:\n\n{table}"


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.web_equality", description=__doc__)
    parser.add_argument("photos", type=Path, help="a folder with JPEG photos")
    parser.add_argument("--quick", action="store_true", help="a tiny captioner and 6 images")
    arguments = parser.parse_args(argv)

    def program():
        find_programs()
        scenes, photos = (4, 2) if arguments.quick else (300, 20)
        found = sorted(arguments.photos.rglob("*.jpg"))
        if len(found) < photos:
            raise UserError(f"{arguments.photos} has {len(found)} JPEG photos; {photos} are needed")
        sizes = {**SIZES, **TINY} if arguments.quick else SIZES
        captioner = random_captioner(60 if arguments.quick else BERT_VOCAB_SIZE, **sizes).eval()
        captioner.text_decoder.cls["predictions"].bias.data[captioner.tokenizer.end] = END
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            make_scenes(folder / "scenes", splits={"test": scenes})
            paths = sorted((folder / "scenes" / "images").iterdir())
            paths += found[:: len(found) // photos][:photos]
            for line in compare(captioner, paths, folder):
                print(line, flush=True)

    return exit_code(program, "stopped")


if __name__ == "__main__":
    sys.exit(main())
