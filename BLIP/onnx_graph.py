"""A decoding step of BLIP as an ONNX graph, and how graphs are written and quantised."""

import logging
import warnings
from pathlib import Path
from typing import Optional

import torch
from torch import Tensor, nn

from BLIP.blip import BlipCaptioner
from BLIP.med import KeysValues


class ImageGraph(nn.Module):
    """image (B, 3, S, S) -> keys and values of cross-attention, (2 * layers, B, heads, P, d)."""

    def __init__(self, captioner: BlipCaptioner):
        super().__init__()
        self.visual_encoder, self.layers = captioner.visual_encoder, captioner.text_decoder.layers

    def forward(self, image: Tensor) -> Tensor:
        embeds = self.visual_encoder(image)
        pairs = [layer.crossattention.keys_values(embeds) for layer in self.layers]
        return torch.stack([x for pair in pairs for x in pair])


class StepGraph(nn.Module):
    """tokens (B, n), past of length t, image_past -> logits (B, V), past of length t + n.

    A past is a pair of keys and values for each layer. With first_token_shift the graph converts
    the first token of a caption to its piece and back, so that callers see words only.
    """

    def __init__(self, captioner: BlipCaptioner):
        super().__init__()
        self.decoder = captioner.text_decoder
        self.shift, self.first_position = captioner.shift, len(captioner.prompt_ids)

    def forward(
        self, tokens: Tensor, past: list[KeysValues], image_past: list[KeysValues]
    ) -> tuple[Tensor, list[KeysValues]]:
        done, new = past[0][0].size(2), tokens.size(1)  # t, n
        positions = torch.arange(done + new)
        mask = positions <= positions[done:].unsqueeze(1)  # (n, t + n)
        if self.shift:
            shifted = self.shift.piece[tokens]
            tokens = torch.where(positions[done:] == self.first_position, shifted, tokens)
        hidden = self.decoder.bert["embeddings"](tokens, done)
        pasts = []
        for index, layer in enumerate(self.decoder.layers):
            added = layer.attention.keys_values(hidden)
            pasts.append(tuple(torch.cat(pair, dim=2) for pair in zip(past[index], added)))
            hidden = layer.attend(hidden, pasts[-1], image_past[index], mask)
        logits = self.decoder.cls["predictions"](hidden[:, -1:])[:, 0]
        if self.shift:
            next_is_first = positions[-1] + 1 == self.first_position
            logits = torch.where(next_is_first, self.shift.read(logits), logits)
        return logits, pasts


def export_graph(
    graph: nn.Module,
    path: Path,
    inputs: dict[str, tuple[Tensor, dict]],
    outputs: list[str],
    past: Optional[dict[str, tuple[Tensor, dict]]] = None,
) -> None:
    """Export a graph. inputs: for each name, an example tensor and its dynamic dimensions.

    past: like inputs. The graph gets these tensors together, as a list in its last argument.
    outputs: the names of its outputs.
    """
    examples, dynamic = (list(each) for each in zip(*inputs.values()))
    if past:
        tensors, dimensions = (list(each) for each in zip(*past.values()))
        examples.append(tensors)
        dynamic.append(dimensions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about its own code
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
            target,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )
    finally:
        logging.disable(disabled)
