"""Writes a captioner as a folder of transformers.js, for Node and for browsers.

    python -m BLIP.export CHECKPOINT OUT --layout transformers.js

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

from pathlib import Path

import torch
from torch import Tensor
from torch.export import Dim

from BLIP.blip import BlipCaptioner
from BLIP.convert import special_ids, write_processing
from BLIP.onnx_graph import ImageGraph, StepGraph, export_graph, to_int8
from BLIP.weights.writing import write_json

CONFIG = "config.json"  # transformers.js loads no folder without this file


class EncoderGraph(ImageGraph):
    """An `ImageGraph` whose result begins with the batch, (B, 2 * layers, heads, P, d)."""

    def forward(self, pixel_values: Tensor) -> Tensor:
        return super().forward(pixel_values).transpose(0, 1)


class MergedGraph(StepGraph):
    """A `StepGraph` with one list of tensors for the past: keys and values of each layer in turn.

    The module's docstring gives the shapes.
    """

    def forward(self, input_ids: Tensor, encoder_hidden_states: Tensor, past: list[Tensor]):
        image = encoder_hidden_states.unbind(1)
        past_pairs = list(zip(past[::2], past[1::2]))
        image_pairs = list(zip(image[::2], image[1::2]))
        logits, pasts = super().forward(input_ids, past_pairs, image_pairs)
        return logits.unsqueeze(1), *(x for pair in pasts for x in pair)


def write_folder(captioner: BlipCaptioner, folder: Path) -> None:
    """Write all files into the existing folder. Needs onnx, onnxscript and onnxruntime."""
    tokenizer = captioner.tokenizer
    sizes = captioner.text_decoder.config
    size = captioner.visual_encoder.patch_embed.img_size[0]
    (folder / "onnx").mkdir(exist_ok=True)
    _write_graphs(captioner, size, folder / "onnx")
    tokenizer.bert.save(str(folder / "tokenizer.json"))
    write_processing(tokenizer, size, {"image_processor_type": "ViTImageProcessor"}, folder)
    prompt = captioner.prompt_ids.tolist()
    # transformers.js takes the value as decoder_input_ids: one list of ids for each image.
    generation = {"decoder_start_token_id": [prompt], "max_length": 20, "min_length": 5}
    write_json({**special_ids(tokenizer), **generation}, folder / "generation_config.json")
    decoder_sizes = {
        "model_type": "musicgen_decoder",
        "num_hidden_layers": sizes.num_hidden_layers,
        "num_attention_heads": sizes.num_attention_heads,
        "hidden_size": sizes.hidden_size,
        "vocab_size": len(tokenizer),
    }
    config = {
        "architectures": ["VisionEncoderDecoderModel"],
        "model_type": "vision-encoder-decoder",
        "is_encoder_decoder": True,
        "max_position_embeddings": captioner.max_positions,
        **special_ids(tokenizer),
        "encoder": {"model_type": "vit", "image_size": size},
        "decoder": decoder_sizes,
    }
    write_json(config, folder / CONFIG)


def _write_graphs(captioner: BlipCaptioner, size: int, folder: Path) -> None:
    """Write both graphs in three precisions. size: the height and width of an image in pixels."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    encoder = EncoderGraph(captioner)
    pixels = torch.zeros(2, 3, size, size)
    with torch.no_grad():
        image = encoder(pixels)[:1]
    batch = Dim("batch_size")  # transformers.js needs this name to build the empty past
    inputs = {"pixel_values": (pixels, {0: batch})}
    encoder_path = folder / "encoder_model.onnx"
    decoder_path = folder / "decoder_model_merged.onnx"
    export_graph(encoder, encoder_path, inputs, ["last_hidden_state"])

    _, layer_parts, heads, _, width = image.shape
    names = [
        f"{layer}.decoder.{part}" for layer in range(layer_parts // 2) for part in ("key", "value")
    ]
    past = torch.zeros(3, heads, 4, width)
    new = Dim("sequence_length")
    done = Dim("past_sequence_length")
    inputs = {
        "input_ids": (torch.full((3, 2), captioner.tokenizer.start), {0: batch, 1: new}),
        "encoder_hidden_states": (image, None),
    }
    pasts = {f"past_key_values.{name}": (past.clone(), {0: batch, 2: done}) for name in names}
    outputs = ["logits", *(f"present.{name}" for name in names)]
    export_graph(MergedGraph(captioner), decoder_path, inputs, outputs, pasts)
    for path in (encoder_path, decoder_path):
        to_int8(path, path.with_stem(path.stem + "_quantized"))
        half = convert_float_to_float16(onnx.load(path), keep_io_types=True)
        onnx.save(half, path.with_stem(path.stem + "_fp16"))
