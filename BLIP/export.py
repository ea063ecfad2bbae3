"""Exports a captioner as ONNX graphs that transformers.js runs, in Node and in browsers.

    python -m BLIP.export checkpoints/blip_mle_smile_base.pth output/onnx

transformers.js does not support BLIP. Therefore config.json describes a `vision-encoder-decoder`
with a `musicgen_decoder`, and the two graphs have the inputs and outputs of such a model:

- encoder_model: pixel_values (B, 3, S, S) -> last_hidden_state (B, 2 * layers, heads, P, d), which
  has the keys and values of cross-attention; d = H / heads. It runs once for each image.
- decoder_model_merged: input_ids (R, n), encoder_hidden_states of one image, and the past keys and
  values of each layer, (R, heads, t, d) -> logits (R, 1, V) of the next token, and the past with n
  more tokens. All R beams share the image. In the first call t is 0, so that the same graph
  processes the prompt and the later tokens.

Each graph is written three times: in fp32, as `_quantized` with 8-bit weights, and as `_fp16`,
whose inputs and outputs stay fp32.
"""

import argparse
import logging
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Optional, Union

import torch
from torch import Tensor, nn
from torch.export import Dim

from BLIP.blip import BlipCaptioner
from BLIP.convert import special_ids, write_processing
from BLIP.from_checkpoint import add_captioner_arguments, captioner_of, run_program
from BLIP.writing import write_json

CONFIG = "config.json"


class EncoderGraph(nn.Module):
    """The graph encoder_model. In its result, each layer's keys come before its values."""

    def __init__(self, captioner: BlipCaptioner):
        super().__init__()
        self.visual_encoder = captioner.visual_encoder
        self.layers = captioner.text_decoder.layers

    def forward(self, pixel_values: Tensor) -> Tensor:
        embeds = self.visual_encoder(pixel_values)
        pairs = [layer.crossattention.keys_values(embeds) for layer in self.layers]
        return torch.stack([tensor for pair in pairs for tensor in pair], dim=1)


class DecoderGraph(nn.Module):
    """The graph decoder_model_merged."""

    def __init__(self, captioner: BlipCaptioner):
        super().__init__()
        self.decoder = captioner.text_decoder

    def forward(
        self, input_ids: Tensor, encoder_hidden_states: Tensor, past: list[Tensor]
    ) -> tuple[Tensor, ...]:
        # past: the key of layer 0, the value of layer 0, the key of layer 1, and so on
        num_past = past[0].size(2)  # t
        positions = torch.arange(num_past + input_ids.size(1))
        mask = positions <= positions[num_past:].unsqueeze(1)  # (n, t + n)
        hidden = self.decoder.bert["embeddings"](input_ids, num_past)
        image = encoder_hidden_states.unbind(1)
        new_past = []
        for layer in self.decoder.layers:
            pair = slice(len(new_past), len(new_past) + 2)
            new_keys_values = layer.attention.keys_values(hidden)
            new_past += [torch.cat(tensors, dim=2) for tensors in zip(past[pair], new_keys_values)]
            hidden = layer.attend(hidden, new_past[pair], image[pair], mask)
        # With hidden[:, -1], a matrix, the head would become a Gemm, and the quantiser would also
        # transpose the word embeddings.
        logits = self.decoder.cls["predictions"](hidden[:, -1:])
        return logits, *new_past


def export_onnx(captioner: BlipCaptioner, folder: Union[str, Path]) -> None:
    """Write the folder that the module's docstring describes.

    Needs onnx, onnxscript and onnxruntime.
    """
    folder = Path(folder)
    (folder / "onnx").mkdir(parents=True, exist_ok=True)
    # transformers.js loads no folder without this file. It is removed first and written last, so
    # that nobody loads a mixture of old and new files.
    (folder / CONFIG).unlink(missing_ok=True)
    captioner = captioner.eval().cpu()
    tokenizer = captioner.tokenizer
    size = captioner.visual_encoder.patch_embed.img_size[0]
    _write_graphs(captioner, size, folder / "onnx")
    tokenizer.bert.save(str(folder / "tokenizer.json"))
    write_processing(tokenizer, size, {"image_processor_type": "ViTImageProcessor"}, folder)
    # transformers.js takes the value as decoder_input_ids: one list of ids for each image.
    prompt = [captioner.prompt_ids.tolist()]
    generation = {"decoder_start_token_id": prompt, "max_length": 20, "min_length": 5}
    write_json({**special_ids(tokenizer), **generation}, folder / "generation_config.json")
    sizes = captioner.text_decoder.config
    config = {
        "architectures": ["VisionEncoderDecoderModel"],
        "model_type": "vision-encoder-decoder",
        "is_encoder_decoder": True,
        "max_position_embeddings": captioner.max_positions,
        **special_ids(tokenizer),
        "encoder": {"model_type": "vit", "image_size": size},
        "decoder": {
            "model_type": "musicgen_decoder",
            "num_hidden_layers": sizes.num_hidden_layers,
            "num_attention_heads": sizes.num_attention_heads,
            "hidden_size": sizes.hidden_size,
            "vocab_size": len(tokenizer),
        },
    }
    write_json(config, folder / CONFIG)


def _write_graphs(captioner: BlipCaptioner, size: int, folder: Path) -> None:
    """Write both graphs in three precisions. size: the height and width of an image in pixels."""
    encoder = EncoderGraph(captioner)
    encoder_path = folder / "encoder_model.onnx"
    decoder_path = folder / "decoder_model_merged.onnx"
    # Example sizes of dynamic dimensions are 2 or more, because torch.export treats sizes 0 and 1
    # as constants.
    pixels = torch.zeros(2, 3, size, size)
    with torch.no_grad():
        image = encoder(pixels)[:1]
    _, num_past, heads, _, width = image.shape
    tokens = torch.full((3, 2), captioner.tokenizer.start)
    past = [torch.zeros(3, heads, 4, width) for _ in range(num_past)]
    names = [f"{i // 2}.decoder.{('key', 'value')[i % 2]}" for i in range(num_past)]
    batch = Dim("batch_size")  # transformers.js needs this name to build the empty past
    token_sizes = {0: batch, 1: Dim("sequence_length")}
    past_sizes = [{0: batch, 2: Dim("past_sequence_length")}] * num_past
    export = partial(torch.onnx.export, dynamo=True, external_data=False, verbose=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own code causes warnings
        export(
            encoder,
            (pixels,),
            encoder_path,
            input_names=["pixel_values"],
            output_names=["last_hidden_state"],
            dynamic_shapes=({0: batch},),
        )
        export(
            DecoderGraph(captioner),
            (tokens, image, past),
            decoder_path,
            input_names=[
                "input_ids",
                "encoder_hidden_states",
                *(f"past_key_values.{name}" for name in names),
            ],
            output_names=["logits", *(f"present.{name}" for name in names)],
            dynamic_shapes=(token_sizes, None, past_sizes),
        )
    for path in (encoder_path, decoder_path):
        _write_smaller(path)


def _write_smaller(path: Path) -> None:
    """Write copies of a graph in 8 and in 16 bits beside it.

    8 bits are for weight matrices, with a scale for each channel; activations are quantised when
    the graph runs. Only 7 of the 8 bits are used, because on CPUs without 8-bit dot products (VNNI)
    onnxruntime adds two products in 16 bits, where the sum could saturate.
    """
    import onnx
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.transformers.float16 import convert_float_to_float16

    quantize_dynamic(
        path,
        path.with_stem(path.stem + "_quantized"),
        op_types_to_quantize=["MatMul"],
        per_channel=True,
        reduce_range=True,
    )
    half = convert_float_to_float16(onnx.load(path), keep_io_types=True)
    onnx.save(half, path.with_stem(path.stem + "_fp16"))


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program and return its exit code. argv: None reads the command line."""
    parser = argparse.ArgumentParser(
        "python -m BLIP.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_captioner_arguments(parser)
    parser.add_argument("folder")
    arguments = vars(parser.parse_args(argv))
    folder = arguments.pop("folder")
    logging.getLogger().setLevel(logging.ERROR)  # onnxruntime logs advice that is not needed here

    def program():
        export_onnx(captioner_of(**arguments), folder)
        return f"wrote {folder}"

    return run_program(program)


if __name__ == "__main__":
    sys.exit(main())
