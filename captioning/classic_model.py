"""From a configuration to the classic captioner it describes."""

from collections.abc import Sequence
from typing import Optional

from baselines import ClassicCaptioner, ImageEncoder, Vocabulary, build_classic
from BLIP import CaptionTokenizer
from captioning.config import Config
from captioning.data import MEAN, STD, preprocess_caption, read_split
from captioning.errors import UserError

BUILT_AS_NAMED = (
    *("model", "prompt", "max_tokens", "embed_dim", "hidden_dim", "attention_dim", "num_layers"),
    *("dropout", "normalise_embeddings", "attention_penalty"),
)


def build_from(config: Config, restored: bool, words: Optional[Sequence[str]]) -> ClassicCaptioner:
    """The captioner with made-up weights, or those of its encoder that a library has.

    restored: whether a checkpoint's weights will replace all of them, so that none need be
    fetched. words: the checkpoint's vocabulary; without it the training captions are counted.
    Raises UserError, and ValueError for settings that do not fit.
    """
    encoder = ImageEncoder(
        config.encoder,
        "none" if restored else config.encoder_weights,
        config.encoder_dim,
        config.encoder_size,
        finetune=config.encoder_lr > 0,
        mean=MEAN,
        std=STD,
    )
    captioner = build_classic(
        encoder=encoder,
        tokenizer=_tokenizer(config, words),
        objective=config.build_objective(),
        word_vectors=None if restored else config.word_vectors,
        **{name: getattr(config, name) for name in BUILT_AS_NAMED},
    )
    prompt = len(captioner.prompt_ids)
    for key, least in {"max_length": prompt + 1, "max_tokens": prompt + 2}.items():
        if getattr(config, key) < least:
            raise UserError(
                f"{key} is {getattr(config, key)}; with this prompt, of {prompt} tokens, it must "
                f"be {least} or more"
            )
    return captioner


def _tokenizer(config: Config, words: Optional[Sequence[str]]):
    if config.vocabulary == "wordpiece":
        return CaptionTokenizer(config.tokenizer)
    if words is not None:
        return Vocabulary(words)
    captions = (
        preprocess_caption(caption, config.max_words)
        for sample in read_split(config, "train")
        for caption in sample.captions
    )
    return Vocabulary.count(captions, config.vocabulary_size, config.min_word_count, config.prompt)


def saved_beside_weights(captioner) -> dict[str, list[str]]:
    """What a checkpoint of a captioner needs besides its weights: the words that it has counted."""
    tokenizer = captioner.tokenizer
    return {"vocabulary": tokenizer.words} if isinstance(tokenizer, Vocabulary) else {}
