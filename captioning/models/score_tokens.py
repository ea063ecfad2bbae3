"""A caption word by word: how likely each word was, and where the captioner looked for it."""

import math
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor, nn

from captioning.captioners.interface import Images
from captioning.runtime.errors import UserError
from decoding import DecodingSettings, until_end

END = "(end)"


class ScoredCaption(NamedTuple):
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
    attention_map: Optional[Tensor]


@torch.inference_mode()
def scored_captions(
    captioner: nn.Module, images: Images, settings: DecodingSettings
) -> list[ScoredCaption]:
    """The best caption of each image of a batch, which is encoded once.

    Temperature, nucleus and penalties, which choose among the words, do not count in their
    probabilities. Raises ValueError as decoding does.
    """
    encoded = captioner.encode(images)
    found = captioner.generate_from(encoded, settings)
    return [
        _spoken(
            captioner,
            encoded[row : row + 1],
            found.token_ids[row, 0],
            found.captions[row][0],
            found.scores[row, 0].item(),
        )
        for row in range(len(images))
    ]


def scored_caption(
    captioner: nn.Module, image: Images, settings: DecodingSettings
) -> ScoredCaption:
    """`captions_word_by_word` of an image, a batch of its own."""
    return scored_captions(captioner, image, settings)[0]


def _spoken(
    captioner: nn.Module, encoded: Any, ids: Tensor, caption: str, score: float
) -> ScoredCaption:
    """encoded: of one image. ids: (n,), its caption's, padded."""
    prompt, said = ids.tensor_split([len(captioner.prompt_ids)])
    # Not what fills up, but a [PAD] that it says before the end; -1 is no token.
    said = said[until_end(said, captioner.tokenizer.end) & (said >= 0)]  # (n - p,)
    logits, attention_map = captioner.score_tokens(encoded, torch.cat([prompt, said]))
    logprobs = logits.double().log_softmax(-1).gather(1, said.unsqueeze(1)).squeeze(1)
    words, places = whole_words(captioner.tokenizer, said)
    probabilities = torch.stack([logprobs[place].sum() for place in places]).exp()
    if attention_map is not None:
        attention_map = torch.stack([attention_map[place].mean(0) for place in places])
        attention_map = (
            attention_map.unflatten(1, (math.isqrt(attention_map.size(1)), -1)).float().cpu()
        )
    return ScoredCaption(caption, score, words, probabilities.cpu(), attention_map)


def attention_map(captioner: nn.Module, image: Images, settings: DecodingSettings) -> ScoredCaption:
    """As `caption_word_by_word`; UserError for a captioner that sees the image once."""
    spoken = scored_caption(captioner, image, settings)
    if spoken.attention_map is None:
        raise UserError("this captioner sees the image once, before all words: no gaze to draw")
    return spoken


def whole_words(tokenizer, ids: Tensor) -> tuple[list[str], list[list[int]]]:
    """The words of ids (n,), pieces (##s) joined to the word before them, and where these are.

    A piece that comes first is a word, as the tokenizer writes it: so a caption begins under
    first-token shifting.
    """
    words: list[str] = []
    places: list[list[int]] = []
    for place, token_id in enumerate(ids.tolist()):
        token = tokenizer.token(token_id)
        if token.startswith("##") and words:
            words[-1] += token[2:]
            places[-1].append(place)
            continue
        if token.startswith("##"):
            token = tokenizer.decode(ids[place : place + 1]).removeprefix("##")
        words.append(END if token_id == tokenizer.end else token)
        places.append([place])
    return words, places
