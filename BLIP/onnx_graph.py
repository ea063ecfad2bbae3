"""Defines BLIP's encoder and decoding step as modules for ONNX; exports and quantises graphs."""

import logging
import warnings
from pathlib import Path
from typing import Optional

import torch
from torch import Tensor, nn

from BLIP.blip import BlipCaptioner
from BLIP.med import KeysValues


class ImageGraph(nn.Module):
    """Computes the keys and values of cross-attention of images (B, 3, S, S).

    The result is (2 * layers, B, heads, P, d): the keys of layer 0, the values of layer 0, the keys
    of layer 1, and so on. P: encoded positions. d: the width of an attention head.
    """

    def __init__(self, captioner: BlipCaptioner):
        super().__init__()
        self.visual_encoder = captioner.visual_encoder
        self.layers = captioner.text_decoder.layers

    def forward(self, image: Tensor) -> Tensor:
        embeds = self.visual_encoder(image)
        pairs = [layer.crossattention.keys_values(embeds) for layer in self.layers]
        return torch.stack([tensor for pair in pairs for tensor in pair])


class StepGraph(nn.Module):
    """Computes the next-token logits (B, V) after new tokens (B, n), and the new past.

    The past, of length t, has the keys and values of earlier tokens, and the new past has length
    t + n. image_past has the keys and values of the image. Each is a list with a pair (keys,
    values) for each layer. If the captioner has first_token_shift, the graph converts between a
    caption's first word and its piece, so that inputs and outputs are words.
    """

    def __init__(self, captioner: BlipCaptioner):
        super().__init__()
        self.decoder = captioner.text_decoder
        self.shift = captioner.shift
        self.first_position = len(captioner.prompt_ids)

    def forward(
        self, tokens: Tensor, past: list[KeysValues], image_past: list[KeysValues]
    ) -> tuple[Tensor, list[KeysValues]]:
        num_past = past[0][0].size(2)  # t
        positions = torch.arange(num_past + tokens.size(1))
        mask = positions <= positions[num_past:].unsqueeze(1)  # (n, t + n)
        if self.shift:
            shifted = self.shift.piece[tokens]
            tokens = torch.where(positions[num_past:] == self.first_position, shifted, tokens)
        hidden = self.decoder.bert["embeddings"](tokens, num_past)
        new_past = []
        for index, layer in enumerate(self.decoder.layers):
            added = layer.attention.keys_values(hidden)
            new_past.append(tuple(torch.cat(pair, dim=2) for pair in zip(past[index], added)))
            hidden = layer.attend(hidden, new_past[-1], image_past[index], mask)
        logits = self.decoder.cls["predictions"](hidden[:, -1:])[:, 0]
        if self.shift:
            next_is_first = positions[-1] + 1 == self.first_position
            logits = torch.where(next_is_first, self.shift.word_logits(logits), logits)
        return logits, new_past


def export_graph(
    graph: nn.Module,
    path: Path,
    inputs: dict[str, tuple[Tensor, dict]],
    outputs: list[str],
    past: Optional[dict[str, tuple[Tensor, dict]]] = None,
) -> None:
    """Export a module as an ONNX file.

    path: the file to write. inputs: maps the name of each input to an example tensor and its
    dynamic dimensions. outputs: the names of the outputs. past: like `inputs`. The module gets
    these tensors as one list, after the inputs.
    """
    examples = [example for example, _ in inputs.values()]
    dynamic = [dimensions for _, dimensions in inputs.values()]
    if past:
        examples.append([example for example, _ in past.values()])
        dynamic.append([dimensions for _, dimensions in past.values()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own code causes warnings
        torch.onnx.export(
            graph,
            tuple(examples),
            path,
            input_names=[*inputs, *(past or ())],
            output_names=outputs,
            dynamic_shapes=tuple(dynamic),
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def to_int8(path: Path, target: Path) -> None:
    """Quantise the weight matrices of a graph to 8 bits, and the activations when the graph runs.

    path: the ONNX file to read. target: the ONNX file to write. Each channel of a weight has a
    separate scale. Weights use only 7 of the 8 bits, because on CPUs without 8-bit dot
    products (VNNI) onnxruntime adds two products in 16 bits, where the sum could saturate.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # onnxruntime logs advice that is not needed here
    try:
        quantize_dynamic(
            path,
            target,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )
    finally:
        logging.disable(disabled)
