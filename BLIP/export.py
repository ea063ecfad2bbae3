"""Exports a captioner as two ONNX graphs, for serving without PyTorch or this project.

    python -m BLIP.export checkpoints/blip_mle_smile_base.pth output/onnx
    python -m BLIP.export checkpoints/blip_mle_smile_base.pth output/onnx --int8

--int8 quantises the encoder's weights to 8 bits. `BLIP/onnx_runner.py` generates captions from the
folder, which contains:

- encoder.onnx: image (B, 3, S, S) -> image_past, the keys and values of cross-attention.
- decoder_step.onnx: new tokens (B, n), past (the keys and values of earlier tokens), image_past ->
  next-token logits (B, V), and the past with the new tokens. In the first step the new tokens are
  the prompt and past has length 0.
- captioner.json: the prompt, the special tokens and the normalisation of images.
- vocab.txt: BERT's vocabulary.

Both pasts have the shape (layers, 2, B, heads, length, head width), where 2 is key and value.
"""

import argparse
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Optional, Union

import torch
from torch import Tensor, nn
from torch.export import Dim

from BLIP.blip import BlipCaptioner
from BLIP.convert import (
    MEAN,
    STD,
    add_captioner_arguments,
    captioner_of,
    exit_code,
    write_json,
    write_vocabulary,
)

SETTINGS = "captioner.json"


class EncoderGraph(nn.Module):
    """image (B, 3, S, S) -> image_past (layers, 2, B, heads, P, H / heads)."""

    def __init__(self, captioner: BlipCaptioner):
        super().__init__()
        self.visual_encoder, self.layers = captioner.visual_encoder, captioner.text_decoder.layers

    def forward(self, image: Tensor) -> Tensor:
        embeds = self.visual_encoder(image)
        pasts = [layer.crossattention.keys_values(embeds) for layer in self.layers]
        return torch.stack([torch.stack(past) for past in pasts])


class StepGraph(nn.Module):
    """tokens (B, n), past of length t, image_past -> logits (B, V), past of length t + n.

    With first_token_shift the graph converts the first token of a caption to its piece and back, so
    that callers see words only.
    """

    def __init__(self, captioner: BlipCaptioner):
        super().__init__()
        self.decoder = captioner.text_decoder
        self.shift, self.first = captioner.shift, len(captioner.prompt_ids)

    def forward(self, tokens: Tensor, past: Tensor, image_past: Tensor) -> tuple[Tensor, Tensor]:
        done, new = past.size(4), tokens.size(1)
        positions = torch.arange(done + new)
        mask = positions <= positions[done:].unsqueeze(1)  # (n, t + n)
        if self.shift:
            shifted = self.shift.piece[tokens]
            tokens = torch.where(positions[done:] == self.first, shifted, tokens)
        hidden = self.decoder.bert["embeddings"](tokens, done)
        pasts = []
        for index, layer in enumerate(self.decoder.layers):
            added = torch.stack(layer.attention.keys_values(hidden))
            pasts.append(torch.cat([past[index], added], dim=3))
            image = (image_past[index, 0], image_past[index, 1])
            hidden = layer.attend(hidden, (pasts[-1][0], pasts[-1][1]), image, mask)
        logits = self.decoder.cls["predictions"](hidden[:, -1])
        if self.shift:
            next_is_first = positions[-1] + 1 == self.first
            logits = torch.where(next_is_first, self.shift.read(logits), logits)
        return logits, torch.stack(pasts)


def export_onnx(captioner: BlipCaptioner, folder: Union[str, Path], int8: bool = False) -> None:
    """Write the folder, see the module's docstring. A failed export writes none of the files.

    Needs onnxscript, and onnxruntime for `int8`.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", suffix=".staged", dir=folder) as temporary:
        _write(captioner, Path(temporary), int8)
        # captioner.json is removed first and written last: without it, no reader can mix old and
        # new files.
        (folder / SETTINGS).unlink(missing_ok=True)
        for path in sorted(Path(temporary).iterdir(), key=lambda path: path.name == SETTINGS):
            os.replace(path, folder / path.name)


def _write(captioner: BlipCaptioner, folder: Path, int8: bool) -> None:
    words = captioner.tokenizer
    captioner = captioner.eval().cpu()
    encoder, decoder = EncoderGraph(captioner), StepGraph(captioner)
    size = captioner.visual_encoder.patch_embed.img_size[0]
    # All example sizes are 2 or more, because torch.export treats sizes 0 and 1 as constants.
    image = torch.zeros(2, 3, size, size)
    with torch.no_grad():
        image_past = encoder(image)
    layers, _, batch, heads, _, width = image_past.shape
    tokens = torch.full((batch, 3), words.start)
    past = torch.zeros(layers, 2, batch, heads, 4, width)
    rows, new, done = Dim("rows"), Dim("new"), Dim("done")
    inputs = {"image": (image, {0: rows})}
    _export(encoder, folder / "encoder.onnx", inputs, ["image_past"])
    inputs = {
        "tokens": (tokens, {0: rows, 1: new}),
        "past": (past, {2: rows, 4: done}),
        "image_past": (image_past, {2: rows}),
    }
    _export(decoder, folder / "decoder_step.onnx", inputs, ["logits", "new_past"])
    if int8:
        to_int8(folder / "encoder.onnx")
    write_vocabulary(words, folder)
    settings = {
        "image_size": size,
        "image_mean": MEAN,
        "image_std": STD,
        "prompt_ids": captioner.prompt_ids.tolist(),
        "end": words.end,
        "pad": words.pad,
        "empty_past": [layers, 2, 1, heads, 0, width],
        "max_length": captioner.max_positions,
    }
    write_json(settings, folder / SETTINGS)


def _export(
    graph: nn.Module, path: Path, inputs: dict[str, tuple[Tensor, dict]], outputs: list[str]
) -> None:
    """Export a graph. inputs: for each name, an example and its dynamic dimensions."""
    examples, dynamic = zip(*inputs.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about its own code
        torch.onnx.export(
            graph,
            examples,
            path,
            input_names=list(inputs),
            output_names=outputs,
            dynamic_shapes=dynamic,
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def to_int8(path: Path) -> None:
    """Quantise a graph's weight matrices to 8 bits per channel, and its activations dynamically.

    Weights use 7 of the 8 bits: on a CPU without VNNI, onnxruntime's sums of two products would
    saturate.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # onnxruntime advises on options that are not needed here
    try:
        quantize_dynamic(
            path,
            path,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )
    finally:
        logging.disable(disabled)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program and return its exit code. argv: by default those of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m BLIP.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_captioner_arguments(parser)
    parser.add_argument("folder")
    parser.add_argument("--int8", action="store_true", help="quantise the image encoder to 8 bits")
    given = vars(parser.parse_args(argv))
    folder, int8 = given.pop("folder"), given.pop("int8")

    def program() -> str:
        try:
            export_onnx(captioner_of(**given), folder, int8)
        except ImportError as error:
            needed = "onnx onnxscript onnxruntime"
            raise ValueError(f"{error}; export needs: pip install {needed}") from error
        return f"wrote {folder}"

    return exit_code(program)


if __name__ == "__main__":
    sys.exit(main())
