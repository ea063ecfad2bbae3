"""Finds out whether the vocabulary fits the language of the training captions."""

from collections.abc import Sequence
from itertools import islice
from typing import Optional, Union

from captioning.captioners.interface import Tokenizer
from captioning.config import Config
from captioning.data.annotations import Sample
from captioning.data.dataset import preprocess_caption
from captioning.data.shards import Shards

IMAGES = 2000  # the captions of so many images are tokenised, which takes less than a second
MAX_SHARE = 0.01


def unknown_words(
    config: Config, samples: Union[Sequence[Sample], Shards], tokenizer: Tokenizer
) -> Optional[str]:
    """Return a line if more than MAX_SHARE of the tokens of the training captions are unknown.

    At most 2 * IMAGES images are looked at, evenly spaced in annotation files, the first in tars.
    """
    step = 1 if isinstance(samples, Shards) else len(samples) // IMAGES + 1
    chosen = list(islice(samples, 0, IMAGES * step, step))
    texts = [preprocess_caption(text, config.max_words) for s in chosen for text in s.captions]
    ids, mask = tokenizer.encode(texts, config.max_tokens)
    marks = tokenizer.encode([""], config.max_tokens)[1].sum()  # such as the end token
    is_unknown = (ids == tokenizer.unknown) & mask.bool()
    share = is_unknown.sum() / (mask.sum() - marks * len(texts))
    if not share > MAX_SHARE:  # or there are no tokens
        return None
    text = texts[is_unknown.any(1).nonzero()[0]]
    words = (w for w in text.split() if tokenizer.unknown in tokenizer.encode([w], len(w) + 9)[0])
    return (
        f"{share:.1%} of the tokens in training captions are unknown to the vocabulary, such as "
        f"{next(words, text)[:30]!r}: choose a tokenizer of their language"
    )
