"""Captioning as the original did it: much is done anew at every step for every beam.

The image's embeddings are repeated for each beam; each step computes the cross-attention's keys and
values of all their places again, and moves the captions' own keys and values after their beams.
Attention is written out in both models, since torch had no fused kernel then.
"""

import copy
from typing import Optional

import torch
from torch import Tensor, nn

from BLIP import BlipCaptioner
from BLIP.med import KeysValues, TextDecoder
from decoding import Decoded, DecodingSettings, decode


class NaiveCaptioner:
    """The captioner's weights, the original's way of captioning."""

    def __init__(self, captioner: BlipCaptioner):
        shared = (*captioner.parameters(), *captioner.buffers())
        self.encoder = copy.deepcopy(captioner.visual_encoder, {id(t): t for t in shared}).eval()
        for block in self.encoder.blocks:
            block.attn.fused_attn = False  # timm's own attention, written out
        self.captioner = captioner

    @torch.inference_mode()
    def generate_details(self, image: Tensor, settings: DecodingSettings) -> Decoded:
        """Token ids and scores of images (B, 3, S, S)."""
        step = NaiveStep(self.captioner.text_decoder, self.encoder(image))
        words = self.captioner.tokenizer
        prompts = self.captioner.prompt_ids.to(image.device).expand(len(image), -1)
        return decode(step, prompts, words.end, words.pad, settings)


class NaiveStep:
    """See `decoding.Step`."""

    def __init__(self, decoder: TextDecoder, image_embeds: Tensor):
        self.decoder, self.image_embeds = decoder, image_embeds  # (B, P, width)
        self.past: list[KeysValues] = []
        self.rows_an_image = 1

    def __call__(self, tokens: Tensor, rows: Optional[Tensor]) -> Tensor:
        images, count, new = tokens.shape
        start = 0
        if rows is not None:
            start = self.past[0][0].size(2)
            self.image_embeds = self.image_embeds[rows[:, 0] // self.rows_an_image]
            self.past = [(key[rows.flatten()], value[rows.flatten()]) for key, value in self.past]
        self.rows_an_image = count
        repeated = self.image_embeds.repeat_interleave(count, dim=0)
        causal = torch.ones(new, new, dtype=torch.bool, device=tokens.device).tril()
        hidden = self.decoder.bert["embeddings"](tokens.flatten(0, 1), start)
        past, self.past = self.past, []
        for index, layer in enumerate(self.decoder.layers):
            own = layer.attention.keys_values(hidden)
            if past:
                own = tuple(torch.cat(pair, dim=2) for pair in zip(past[index], own))
            self.past.append(own)
            hidden = _attend(layer.attention, hidden, own, causal if rows is None else None)
            hidden = _attend(
                layer.crossattention, hidden, layer.crossattention.keys_values(repeated)
            )
            inner = nn.functional.gelu(layer.intermediate["dense"](hidden))
            hidden = layer.output(inner, hidden)
        return self.decoder.cls["predictions"](hidden[:, -1]).unflatten(0, (images, count))


def _attend(
    block, hidden: Tensor, keys_values: KeysValues, mask: Optional[Tensor] = None
) -> Tensor:
    key, value = keys_values
    query = block._split(block.self["query"](hidden))
    scores = query @ key.transpose(2, 3) / query.size(3) ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    context = scores.softmax(-1) @ value
    return block.output(context.transpose(1, 2).reshape(hidden.shape), hidden)
