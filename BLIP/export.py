"""The captioner as two ONNX graphs for serving, without PyTorch or this project.

    python -m BLIP.export checkpoints/blip_mle_smile_base.pth output/onnx
    python -m BLIP.export checkpoints/blip_mle_smile_base.pth output/onnx --int8

`BLIP/onnx_runner.py` captions with them. --int8: the encoder in 8 bits, as `inference_copy` has it.
encoder.onnx: image (B, 3, S, S) -> image_past, the keys and values that the decoder's
cross-attention needs. decoder_step.onnx: tokens (B, n) that come next, past of the tokens before
them, image_past -> logits (B, V) of what follows, past of all. Both pasts are
(layers, 2, B, heads, places, head width), key and value; at first, tokens is the prompt and past
has 0 places. captioner.json says which tokens begin and end a caption and how an image is scaled.
"""

import argparse
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
    whole_file,
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
    """tokens (B, n), past of t places, image_past -> logits (B, V), past of t + n places.

    A first token that is shifted is so within: what calls it sees a word in its place.
    """

    def __init__(self, captioner: BlipCaptioner):
        super().__init__()
        self.decoder = captioner.text_decoder
        self.shift, self.first = captioner.shift, len(captioner.prompt_ids)

    def forward(self, tokens: Tensor, past: Tensor, image_past: Tensor) -> tuple[Tensor, Tensor]:
        done, new = past.size(4), tokens.size(1)
        places = torch.arange(done + new)
        mask = places <= places[done:].unsqueeze(1)  # (n, t + n)
        if self.shift:
            tokens = torch.where(places[done:] == self.first, self.shift.piece[tokens], tokens)
        hidden = self.decoder.bert["embeddings"](tokens, done)
        pasts = []
        for index, layer in enumerate(self.decoder.layers):
            now = torch.stack(layer.attention.keys_values(hidden))
            pasts.append(torch.cat([past[index], now], dim=3))
            image = (image_past[index, 0], image_past[index, 1])
            hidden = layer.attend(hidden, (pasts[-1][0], pasts[-1][1]), image, mask)
        logits = self.decoder.cls["predictions"](hidden[:, -1])
        if self.shift:
            comes_first = places[-1] + 1 == self.first
            logits = torch.where(comes_first, self.shift.read(logits), logits)
        return logits, torch.stack(pasts)


def export_onnx(captioner: BlipCaptioner, folder: Union[str, Path], int8: bool = False) -> None:
    """Write encoder.onnx, decoder_step.onnx, captioner.json and vocab.txt, all or none. Needs
    onnxscript, and onnxruntime for `int8`."""
    with _taking_their_places(Path(folder)) as temporary:
        _write(captioner, temporary, int8)


@contextmanager
def _taking_their_places(folder: Path) -> Iterator[Path]:
    """A folder to write, whose files are moved to `folder` when the block has ended well.

    captioner.json, without which nobody reads the others, goes first and comes last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", suffix=".staged", dir=folder) as temporary:
        yield Path(temporary)
        (folder / SETTINGS).unlink(missing_ok=True)
        for path in sorted(Path(temporary).iterdir(), key=lambda path: path.name == SETTINGS):
            os.replace(path, folder / path.name)


def _write(captioner: BlipCaptioner, folder: Path, int8: bool) -> None:
    words = captioner.tokenizer
    captioner = captioner.eval().cpu()
    encoder, decoder = EncoderGraph(captioner), StepGraph(captioner)
    size = captioner.visual_encoder.patch_embed.img_size[0]
    # Examples of 2 and more: sizes of 0 and 1 are taken to be fixed.
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
    """inputs: by name an example and which of its dimensions may have another size."""
    examples, dynamic = zip(*inputs.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter's, about itself
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
    """Give a graph's matrices weights in 8 bits by channel, and activations as they come.

    Of the 8 bits weights use 7: where it runs may be a processor without VNNI's instructions, on
    which onnxruntime's sums of two products would be cut off.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with whole_file(path) as temporary, _unwarned():
        quantize_dynamic(
            path,
            temporary,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )


@contextmanager
def _unwarned() -> Iterator[None]:
    """Without what the libraries say of themselves."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program on its arguments (those of the command line); return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m BLIP.export", description=__doc__)
    add_captioner_arguments(parser)
    parser.add_argument("folder")
    parser.add_argument("--int8", action="store_true", help="the image encoder in 8 bits")
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
