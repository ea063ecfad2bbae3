"""Where a captioner looks as it says a caption: word by word, on the grid of its image encoder."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from BLIP import BlipCaptioner
from captioning.errors import UserError
from decoding import DecodingSettings


class Gaze(NamedTuple):
    """words: of the caption, then "(end)" if it ended; weights: float (words, G, G), each of which
    sums to 1: where the captioner looked before it said the word."""

    words: list[str]
    weights: Tensor


@torch.inference_mode()
def gaze(captioner: nn.Module, image: Tensor, settings: DecodingSettings) -> Gaze:
    """The caption of an image (3, S, S), normalised, and where each word of it was found.

    Attention LSTM and Show, Attend and Tell: their attention. BLIP: the cross-attention to the
    patches, the mean over heads and layers, without what is given to [CLS]. A word of several
    pieces has the mean of theirs. Raises UserError for a captioner that sees the image once.
    """
    found = captioner.generate_details(image.unsqueeze(0), settings)
    ids = found.token_ids[0, 0]
    ids = ids[ids != captioner.tokenizer.pad]
    if isinstance(captioner, BlipCaptioner):
        weights = _blips_gaze(captioner, image, ids)
    else:
        weights = captioner.gaze(image, ids)
    if weights is None:
        raise UserError("this captioner sees the image once, before all words: no gaze to draw")
    side = math.isqrt(weights.size(1))
    words, weights = _whole_words(captioner.tokenizer, ids[len(captioner.prompt_ids) :], weights)
    return Gaze(words, weights.unflatten(1, (side, side)).float().cpu())


def _blips_gaze(captioner: BlipCaptioner, image: Tensor, ids: Tensor) -> Tensor:
    """(n - p, P), from the queries and keys that each layer's cross-attention is called with."""
    seen: list[Tensor] = []

    def look(attention, arguments):
        hidden, (key, _) = arguments[:2]  # (1, n, H); (1, heads, 1 + P, H / heads)
        query = attention.self["query"](hidden)
        query = query.unflatten(2, (key.size(1), -1)).transpose(1, 2)  # (1, heads, n, H / heads)
        scores = query @ key.transpose(2, 3) / math.sqrt(query.size(3))
        seen.append(scores.softmax(-1).mean(1)[0])  # (n, 1 + P)

    decoder = captioner.text_decoder
    hooks = [layer.crossattention.register_forward_pre_hook(look) for layer in decoder.layers]
    try:
        tokens = ids[None, :-1]
        embeds = captioner.visual_encoder(image.unsqueeze(0))
        decoder.logits(tokens, torch.ones_like(tokens), embeds)
    finally:
        for hook in hooks:
            hook.remove()
    patches = torch.stack(seen).mean(0)[len(captioner.prompt_ids) - 1 :, 1:]
    return patches / patches.sum(1, keepdim=True)


def _whole_words(tokenizer, ids: Tensor, weights: Tensor) -> tuple[list[str], Tensor]:
    """Word pieces (##s) joined to the word before them, their weights (n, P) averaged."""
    words: list[str] = []
    groups: list[list[Tensor]] = []
    for token_id, row in zip(ids.tolist(), weights):
        token = tokenizer.token(token_id)
        if token.startswith("##") and words:
            words[-1] += token[2:]
            groups[-1].append(row)
        else:
            words.append("(end)" if token_id == tokenizer.end else token)
            groups.append([row])
    return words, torch.stack([torch.stack(group).mean(0) for group in groups])
