"""Scores a caption word by word: the probability and the attention map of each word."""

import math
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from captioning.captioners.interface import Images, Tokenizer
from captioning.models.reranking import Reranker
from decoding import DecodingSettings, Generated, until_end

END = "(end)"


class ScoredCaption(NamedTuple):
    """A scored caption.

    - caption: the text
    - score: see `decoding.Generated`
    - words: the caption's words; the last is END if the caption has an end token
    - probabilities: float64 (words,), the probability of each word given the previous words. The
      probability of a word of several tokens is the product over its tokens
    - attention_map: float (words, G, G), a map per word that sums to 1: the attention in the step
      that generated the word. For a word of several tokens, the mean over its tokens. None if the
      captioner does not attend to the image
    """

    caption: str
    score: float
    words: list[str]
    probabilities: Tensor
    attention_map: Optional[Tensor]

    def resized_maps(self, height: int, width: int) -> Tensor:
        """Return the maps (words, height, width), interpolated and divided by their maxima."""
        maps = F.interpolate(self.attention_map.unsqueeze(1), (height, width), mode="bicubic")
        maps = maps[:, 0].clamp(min=0)
        return maps / maps.amax((1, 2), keepdim=True).clamp(min=1e-9)


@torch.inference_mode()
def scored_captions(
    captioner: nn.Module,
    images: Images,
    settings: DecodingSettings,
    reranker: Optional[Reranker] = None,
) -> list[ScoredCaption]:
    """Generate and score the best caption of each image of a batch.

    The probabilities are the model's, without temperature, top-p or penalties. Raises ValueError
    for settings that decoding refuses.
    """
    encoded = captioner.encode(images)
    if reranker is None:
        generated = captioner.generate_from(encoded, settings)
    else:
        generated = reranker.generate_from(images, encoded, settings)
    return [
        _score_best(captioner, encoded[row : row + 1], generated, row)
        for row in range(len(generated.captions))
    ]


def _score_best(
    captioner: nn.Module, encoded: Any, generated: Generated, row: int
) -> ScoredCaption:
    """Score the best caption of one image. encoded: the image. row: its index in the batch."""
    ids = generated.token_ids[row, 0]  # (n,), with padding
    prompt, caption_ids = ids.tensor_split([len(captioner.prompt_ids)])
    # Drop padding: ids that are -1 or follow the end token. A generated pad token is kept.
    is_caption = until_end(caption_ids, captioner.tokenizer.end) & (caption_ids >= 0)
    caption_ids = caption_ids[is_caption]  # (n - p,)
    logits, maps = captioner.score_tokens(encoded, torch.cat([prompt, caption_ids]))
    logprobs = logits.double().log_softmax(-1).gather(1, caption_ids.unsqueeze(1)).squeeze(1)
    words, positions = join_pieces(captioner.tokenizer, caption_ids)
    if maps is not None:
        maps = torch.stack([maps[pieces].mean(0) for pieces in positions])
        maps = maps.unflatten(1, (math.isqrt(maps.size(1)), -1)).float().cpu()
    return ScoredCaption(
        caption=generated.captions[row][0],
        score=generated.scores[row, 0].item(),
        words=words,
        probabilities=torch.stack([logprobs[pieces].sum() for pieces in positions]).exp().cpu(),
        attention_map=maps,
    )


def join_pieces(tokenizer: Tokenizer, ids: Tensor) -> tuple[list[str], list[list[int]]]:
    """Join tokens to words. Return the words of ids (n,), and the positions of each word's tokens.

    A token that continues a word (##s) is joined to the previous word. Such a token at the
    beginning, which first_token_shift can cause, is a separate word.
    """
    words, positions = [], []
    ends = getattr(tokenizer, "end_tokens", [tokenizer.end])  # a VLM may generate several
    for position, token_id in enumerate(ids.tolist()):
        token = END if token_id in ends else tokenizer.token(token_id)
        if token.startswith("##") and words:
            words[-1] += token[2:]
            positions[-1].append(position)
        else:
            words.append(token.removeprefix("##"))
            positions.append([position])
    return words, positions
