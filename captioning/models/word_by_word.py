"""A caption word by word: how likely each word was, and where the captioner looked for it."""

import math
from typing import NamedTuple, Optional

import torch
from torch import Tensor, nn

from BLIP import BlipCaptioner
from decoding import DecodingSettings

END = "(end)"


class Told(NamedTuple):
    """A caption and its words, END after the last where the caption ended.

    score: see `decoding.Decoded`. probabilities: float64 (words,), of each word given those before
    it, among all that the captioner can say; of several pieces the product. gaze: float (words, G,
    G), each of which sums to 1, where it looked before it said the word, of several pieces the
    mean; None for a captioner that sees the image once.
    """

    caption: str
    score: float
    words: list[str]
    probabilities: Tensor
    gaze: Optional[Tensor]


@torch.inference_mode()
def tell(captioner: nn.Module, image: Tensor, settings: DecodingSettings) -> Told:
    """The best caption of an image (3, S, S), normalised, which is encoded once.

    Temperature, nucleus and penalties, which choose among the words, do not count in their
    probabilities. Raises ValueError as decoding does.
    """
    encoded: list[Tensor] = []
    blip = isinstance(captioner, BlipCaptioner)
    encoder = captioner.visual_encoder if blip else captioner.encoder
    hook = encoder.register_forward_hook(lambda module, given, output: encoded.append(output))
    try:
        found = captioner.generate_details(image.unsqueeze(0), settings)
    finally:
        hook.remove()
    ids = found.token_ids[0, 0]
    ids = ids[ids != captioner.tokenizer.pad]
    said = ids[len(captioner.prompt_ids) :]  # (n - p,)
    reread = _reread if blip else type(captioner).reread
    logits, gaze = reread(captioner, encoded[0], ids)
    logprobs = logits.double().log_softmax(-1).gather(1, said.unsqueeze(1)).squeeze(1)
    words, places = whole_words(captioner.tokenizer, said)
    probabilities = torch.stack([logprobs[place].sum() for place in places]).exp()
    if gaze is not None:
        gaze = torch.stack([gaze[place].mean(0) for place in places])
        gaze = gaze.unflatten(1, (math.isqrt(gaze.size(1)), -1)).float().cpu()
    score = found.scores[0, 0].item()
    return Told(found.captions[0][0], score, words, probabilities.cpu(), gaze)


def _reread(captioner: BlipCaptioner, embeds: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (n - p, V) of the ids (n,) after the prompt, and the cross-attention (n - p, P).

    embeds: (1, 1 + P, width). The attention is to the patches, the mean over heads and layers,
    without what is given to [CLS], from the queries and keys that each layer is called with.
    """
    seen: list[Tensor] = []

    def look(attention, arguments):
        hidden, (key, _) = arguments[:2]  # (1, n, H); (1, heads, 1 + P, H / heads)
        query = attention.self["query"](hidden)
        query = query.unflatten(2, (key.size(1), -1)).transpose(1, 2)  # (1, heads, n, H / heads)
        scores = query @ key.transpose(2, 3) / math.sqrt(query.size(3))
        seen.append(scores.softmax(-1).mean(1)[0])  # (n, 1 + P)

    decoder, start = captioner.text_decoder, len(captioner.prompt_ids) - 1
    hooks = [layer.crossattention.register_forward_pre_hook(look) for layer in decoder.layers]
    try:
        tokens = ids[None, :-1]
        logits = decoder.logits(tokens, torch.ones_like(tokens), embeds, start)
    finally:
        for hook in hooks:
            hook.remove()
    patches = torch.stack(seen).mean(0)[start:, 1:]
    return logits[0], patches / patches.sum(1, keepdim=True)


def whole_words(tokenizer, ids: Tensor) -> tuple[list[str], list[list[int]]]:
    """The words of ids (n,), pieces (##s) joined to the word before them, and where these are."""
    words: list[str] = []
    places: list[list[int]] = []
    for place, token_id in enumerate(ids.tolist()):
        token = tokenizer.token(token_id)
        if token.startswith("##") and words:
            words[-1] += token[2:]
            places[-1].append(place)
        else:
            words.append(END if token_id == tokenizer.end else token)
            places.append([place])
    return words, places
