"""Checks the data of a run before its first step, and says what there is."""

from collections.abc import Sequence
from itertools import islice
from typing import Union

from captioning.captioners.interface import Tokenizer
from captioning.captioners.registry import package_of
from captioning.config import Config
from captioning.data.annotations import Sample
from captioning.data.dataset import preprocess_caption
from captioning.data.shards import Shards
from captioning.data.sources import check_images, read_split
from captioning.runtime.progress import log_line

Samples = Union[Sequence[Sample], Shards]

IMAGES = 2000  # the captions of so many images are tokenised, which takes about a second
MAX_UNKNOWN = 0.01  # share of the tokens


def check_data(config: Config, train: Samples, val: Sequence[Sample]) -> None:
    """Log how many images and captions each split has. Raises UserError if photos are missing.

    train, val: the samples. The test split is read only if a key names its file.
    """
    test = read_split(config, "test") if config.test_file or "test" in (config.split or ()) else ()
    splits = {"train": train, "val": val, "test": test}
    counts = (
        f"{name} {len(samples):,} images with {_num_captions(samples):,} captions"
        for name, samples in splits.items()
        if samples
    )
    log_line(f"data: {', '.join(counts)}")
    of_files = () if isinstance(train, Shards) else train  # tars are indexed already
    check_images(config, (*of_files, *val, *test))


def _num_captions(samples: Samples) -> int:
    if isinstance(samples, Shards):
        return sum(summary["captions"] for summary in samples.summaries)
    return sum(len(sample.captions) for sample in samples)


def check_captions(config: Config, samples: Samples, tokenizer: Tokenizer) -> None:
    """Log a line if training cuts captions, and one if it has many unknown tokens.

    At most 2 * IMAGES images are looked at, evenly spaced in annotation files, the first in tars.
    """
    step = 1 if isinstance(samples, Shards) else len(samples) // IMAGES + 1
    chosen = islice(samples, 0, IMAGES * step, step)
    texts = [text for sample in chosen for text in sample.captions]
    cleaned = [preprocess_caption(text, len(text)) for text in texts]
    kept = [preprocess_caption(text, config.max_words) for text in texts]
    prompt = "" if package_of(config.model).PROMPT_IS_QUESTION else config.prompt
    ids = tokenizer.encode([prompt + text for text in kept], config.max_tokens + 1)
    is_token = ids != tokenizer.pad
    lengths = is_token.sum(1).tolist()
    cut = [
        text
        for text, whole, words, length in zip(texts, cleaned, kept, lengths)
        if words != whole or length > config.max_tokens
    ]
    if cut:
        log_line(
            f"training cuts {len(cut):,} of {len(texts):,} captions, such as {cut[0][:40]!r}: "
            "raise max_words or max_tokens to keep them whole"
        )
    added = tokenizer.encode([prompt], config.max_tokens).size(1)  # such as the end token
    is_unknown = (ids == tokenizer.unknown) & is_token
    share = is_unknown.sum() / (is_token.sum() - added * len(texts))
    if share > MAX_UNKNOWN:  # not if there are no tokens
        text = kept[is_unknown.any(1).nonzero()[0]]
        words = (w for w in text.split() if tokenizer.unknown in tokenizer.encode([w], 99))
        log_line(
            f"{share:.1%} of the tokens in training captions are unknown to the vocabulary, such "
            f"as {next(words, text)[:30]!r}: choose a tokenizer of their language"
        )
