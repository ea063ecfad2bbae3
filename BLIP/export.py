"""Exports a captioner as two ONNX graphs, for serving without PyTorch or this project.

    python -m BLIP.export checkpoints/blip_mle_smile_base.pth output/onnx
    python -m BLIP.export checkpoints/blip_mle_smile_base.pth output/onnx --int8

--int8 quantises the encoder's weights to 8 bits. With --layout transformers.js the folder is for
Node and browsers, see `BLIP/transformers_js.py`. Otherwise it is for `BLIP/onnx_runner.py`, which
generates captions from these files:

- encoder.onnx: image (B, 3, S, S) -> image_past, the keys and values of cross-attention.
- decoder_step.onnx: tokens (B, n), past (the keys and values of earlier tokens), image_past ->
  logits (B, V) of the next token, and new_past, which includes the n tokens. In the first step the
  tokens are the prompt, and past has length 0.
- captioner.json: the prompt's ids, the special tokens and the normalisation of images.
- vocab.txt: BERT's vocabulary.

past and image_past have the shape (layers, 2, B, heads, length, head width). Index 0 of the second
dimension has the keys, and index 1 the values.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Optional, Union

import torch
from torch import Tensor
from torch.export import Dim

from BLIP.blip import BlipCaptioner
from BLIP.convert import MEAN, STD
from BLIP.from_checkpoint import add_captioner_arguments, captioner_of, run_program
from BLIP.onnx_graph import ImageGraph, StepGraph, export_graph, to_int8
from BLIP.transformers_js import CONFIG, write_folder
from BLIP.weights.writing import write_json

SETTINGS = "captioner.json"
# Maps each layout to the file without which no reader loads the folder.
LAYOUTS = {"runner": SETTINGS, "transformers.js": CONFIG}


class EncoderGraph(ImageGraph):
    """Computes image_past (layers, 2, B, heads, P, H / heads) from images (B, 3, S, S)."""

    def forward(self, image: Tensor) -> Tensor:
        return super().forward(image).unflatten(0, (-1, 2))


class DecoderGraph(StepGraph):
    """A `StepGraph` whose past and image_past are one tensor each, not lists of pairs."""

    def forward(self, tokens: Tensor, past: Tensor, image_past: Tensor) -> tuple[Tensor, Tensor]:
        past_pairs = [(layer[0], layer[1]) for layer in past]
        image_pairs = [(layer[0], layer[1]) for layer in image_past]
        logits, new_past = super().forward(tokens, past_pairs, image_pairs)
        return logits, torch.stack([torch.stack(pair) for pair in new_past])


def export_onnx(
    captioner: BlipCaptioner, folder: Union[str, Path], int8: bool = False, layout: str = "runner"
) -> None:
    """Write the folder that the module's docstring describes.

    If the export fails, the files in the folder are unchanged. layout: a key of LAYOUTS. Needs
    onnxscript; `int8` and transformers.js also need onnxruntime.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    captioner = captioner.eval().cpu()
    with tempfile.TemporaryDirectory(prefix=".", suffix=".staged", dir=folder) as temporary:
        staged = Path(temporary)
        if layout == "runner":
            _write(captioner, staged, int8)
        else:
            write_folder(captioner, staged)
        # The settings file is removed first and written last. No reader works without it, so that
        # no reader loads a mixture of old and new files.
        settings = LAYOUTS[layout]
        (folder / settings).unlink(missing_ok=True)
        files = [path for path in staged.rglob("*") if path.is_file() and path.name != settings]
        for path in [*files, staged / settings]:
            target = folder / path.relative_to(staged)
            target.parent.mkdir(exist_ok=True)
            os.replace(path, target)


def _write(captioner: BlipCaptioner, folder: Path, int8: bool) -> None:
    """Write the files of the layout "runner" into `folder`."""
    tokenizer = captioner.tokenizer
    encoder = EncoderGraph(captioner)
    decoder = DecoderGraph(captioner)
    size = captioner.visual_encoder.patch_embed.img_size[0]
    # All example sizes are 2 or more, because torch.export treats sizes 0 and 1 as constants.
    image = torch.zeros(2, 3, size, size)
    with torch.no_grad():
        image_past = encoder(image)
    layers, _, batch, heads, _, width = image_past.shape
    tokens = torch.full((batch, 3), tokenizer.start)
    past = torch.zeros(layers, 2, batch, heads, 4, width)
    rows = Dim("rows")
    new = Dim("new")
    done = Dim("done")
    inputs = {"image": (image, {0: rows})}
    export_graph(encoder, folder / "encoder.onnx", inputs, ["image_past"])
    inputs = {
        "tokens": (tokens, {0: rows, 1: new}),
        "past": (past, {2: rows, 4: done}),
        "image_past": (image_past, {2: rows}),
    }
    export_graph(decoder, folder / "decoder_step.onnx", inputs, ["logits", "new_past"])
    if int8:
        to_int8(folder / "encoder.onnx", folder / "encoder.onnx")
    tokenizer.write_vocabulary(folder)
    settings = {
        "image_size": size,
        "image_mean": MEAN,
        "image_std": STD,
        "prompt_ids": captioner.prompt_ids.tolist(),
        "end": tokenizer.end,
        "pad": tokenizer.pad,
        "empty_past": [layers, 2, 1, heads, 0, width],
        "max_length": captioner.max_positions,
    }
    write_json(settings, folder / SETTINGS)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program and return its exit code. argv: None reads the command line."""
    parser = argparse.ArgumentParser(
        "python -m BLIP.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_captioner_arguments(parser)
    parser.add_argument("folder")
    parser.add_argument("--int8", action="store_true", help="quantise the image encoder to 8 bits")
    parser.add_argument("--layout", choices=LAYOUTS, default="runner", help="who reads the folder")
    arguments = vars(parser.parse_args(argv))
    folder = arguments.pop("folder")
    layout = arguments.pop("layout")
    int8 = arguments.pop("int8")
    if int8 and layout != "runner":
        parser.error(
            "--int8 is for the layout runner; transformers.js always gets 8-bit files, too"
        )

    def program():
        try:
            export_onnx(captioner_of(**arguments), folder, int8, layout)
        except ImportError as error:
            raise ValueError(
                f"{error}; export needs: pip install onnx onnxscript onnxruntime"
            ) from error
        return f"wrote {folder}"

    return run_program(program)


if __name__ == "__main__":
    sys.exit(main())
