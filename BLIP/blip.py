"""Defines the BLIP captioner, which combines image encoder, text decoder and tokeniser."""

import copy
import math
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Optional, Union

import torch
from torch import Tensor, nn

from BLIP.checkpoint import FILES
from BLIP.compiled_step import CompiledStepFactory
from BLIP.inference import float_linear, replace_linears, shared_copy
from BLIP.int8 import int8_linear
from BLIP.sizes import MED_CONFIG, VitSizes, read_med_config
from BLIP.step import CachedStep
from BLIP.text_decoder import TextDecoder
from BLIP.tokenizer import CaptionTokenizer, first_pieces
from BLIP.vit import ImageEncoder
from decoding import DecodingSettings, Step
from decoding.caption_generator import CaptionGenerator, Prompts
from smile import Objective, ObjectiveOutput

PROMPT = "a picture of "


class BlipCaptioner(CaptionGenerator):
    """BLIP (arXiv 2201.12086): a ViT, and a text decoder with cross-attention to the ViT's output.

    Implements `captioning.captioners.interface.Captioner`, which documents the methods. Each
    argument has the name of its configuration key, which docs/settings.md describes. The default
    objective is SMILE. Raises ValueError for impossible sizes, and for a tokenizer that cannot be
    read.
    """

    def __init__(
        self,
        tokenizer: Union[str, Mapping[str, str]] = "bert-base-uncased",
        vit: Union[str, Mapping, VitSizes] = "base",
        image_size: int = 384,
        med_config: Union[str, Path, Mapping] = MED_CONFIG,
        objective: Optional[Objective] = None,
        prompt: str = PROMPT,
        vit_grad_ckpt: bool = False,
        vit_ckpt_layer: int = 0,
        max_tokens: int = 40,
        first_token_shift: bool = False,
    ):
        super().__init__()
        self.tokenizer = CaptionTokenizer(tokenizer)
        sizes = read_med_config(med_config)
        objective = (objective or Objective("smile")).with_tokens(
            self.tokenizer.pad, self.tokenizer.end
        )
        self.visual_encoder = ImageEncoder(vit, image_size, vit_grad_ckpt, vit_ckpt_layer)
        width = self.visual_encoder.embed_dim
        self.text_decoder = TextDecoder(sizes, len(self.tokenizer), width, objective)
        self.image_size = image_size
        self.prompt = prompt
        self.prompt_ids = self.tokenizer.encode_prompt(prompt)  # (n,)
        self.max_tokens = max_tokens
        self.shift = first_pieces(self.tokenizer) if first_token_shift else None
        self.step_factory = CachedStep  # `for_inference` may replace it by a compiled step
        self.max_positions = sizes.max_position_embeddings

    def forward(
        self,
        image: Tensor,
        captions: list[list[str]],
        prompts: Prompts = None,
    ) -> ObjectiveOutput:
        """Compute the objective on k captions of each image. Each image is encoded once.

        - image: (B, 3, S, S), normalised
        - captions: B lists of k strings, without the prompt
        - prompts: B prompts; None stands for the captioner's own prompt

        Raises ValueError if there are not B lists of equal length.
        """
        tokens, labels, prompt_length = self.training_tokens(image, captions, prompts)
        return self.text_decoder(tokens, self.visual_encoder(image), labels, prompt_length)

    def predictions(
        self,
        image: Tensor,
        captions: list[list[str]],
        prompts: Prompts = None,
    ) -> tuple[Tensor, Tensor]:
        """Return logits (R, N, V) and the labels (R, N) that they predict, R = B * k.

        `forward` documents the arguments. N is the number of positions after the shortest prompt.
        """
        tokens, labels, prompt_length = self.training_tokens(image, captions, prompts)
        embeds = self.visual_encoder(image)
        logits = self.text_decoder.logits(tokens[:, :-1], embeds, prompt_length - 1)
        return logits, labels[:, prompt_length:]

    def step_function(self, encoded: Tensor, settings: DecodingSettings) -> Step:
        return self.step_factory(self.text_decoder, encoded, settings.max_length)

    def encode(self, image: Tensor) -> Tensor:
        """Encode images (B, 3, S, S) -> (B, 1 + P, width): [CLS], then P patches."""
        with self.inference_context():
            return self.visual_encoder(image)

    @torch.inference_mode()
    def score_tokens(self, encoded: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (n - p, V) that predict the ids after the prompt, and the attention map.

        encoded: one encoded image, (1, 1 + P, width). ids: the caption, (n,), which begins with the
        p ids of the prompt. The attention map (n - p, P) is the mean of cross-attention over heads
        and layers. It leaves [CLS] out, and each row sums to 1.
        """
        attention_maps = []

        def record(attention, arguments):
            hidden, (key, _) = arguments[:2]  # (1, n, H); (1, heads, 1 + P, H / heads)
            query = attention.split_heads(attention.self["query"](hidden))
            scores = query @ key.to(query.dtype).transpose(2, 3) / math.sqrt(query.size(3))
            attention_maps.append(scores.softmax(-1).mean(1)[0])  # (n, 1 + P)

        with ExitStack() as hooks:
            for layer in self.text_decoder.layers:
                hooks.enter_context(layer.crossattention.register_forward_pre_hook(record))
            logits = self.caption_logits(encoded, ids[None])[0]
        patch_attention = torch.stack(attention_maps).mean(0)[-len(logits) :, 1:]
        return logits, patch_attention / patch_attention.sum(1, keepdim=True)

    def caption_logits(self, encoded: Tensor, ids: Tensor) -> Tensor:
        with self.inference_context():
            return self.text_decoder.logits(ids[:, :-1], encoded, self.prompt_ids.size(-1) - 1)

    def for_inference(
        self, dtype: torch.dtype = torch.float32, compiled: bool = False
    ) -> "BlipCaptioner":
        """Return a copy in evaluation mode whose weights are cast and packed; see `shared_copy`.

        LoRA is merged. Linear layers compute in `dtype`, see `float_linear` and `int8_linear`;
        everything else is float32.
        compiled: compile the encoder and the decoding step; on a GPU the step is a CUDA graph.
        """
        # LoRA's method changes the weights, which a run may train further.
        is_adapted = hasattr(self, "merge_and_unload")
        copied = shared_copy(copy.deepcopy(self).merge_and_unload() if is_adapted else self)
        make = partial(float_linear, dtype=dtype, pack=not compiled)
        replace_linears(copied, int8_linear if dtype == torch.int8 else make)
        if compiled:
            copied.visual_encoder.compile()
            copied.step_factory = CompiledStepFactory(mode="reduce-overhead")
        return copied

    def compile_parts(self) -> None:
        for part in self.children():
            part.compile()

    def saved_beside_weights(self) -> dict[str, Any]:
        sizes = self.text_decoder.config.model_dump()
        return {FILES: {"tokenizer": self.tokenizer.files, "med_config": sizes}}

    def shards(self) -> list[nn.Module]:
        """Return the encoder's blocks and the decoder's layers.

        The word embedding and the head are left out, because they share a weight.
        """
        return [*self.visual_encoder.blocks, *self.text_decoder.layers]


build_captioner = BlipCaptioner  # an alias that users' scripts import


def inference_copy(captioner: BlipCaptioner, dtype: torch.dtype = torch.float32) -> BlipCaptioner:
    """Return `captioner.for_inference(dtype)`, under its earlier name."""
    return captioner.for_inference(dtype)
