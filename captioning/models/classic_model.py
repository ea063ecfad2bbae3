"""From a configuration to the classic captioner it describes."""

from collections.abc import Sequence
from typing import Optional

from baselines import ClassicCaptioner, ImageEncoder, Vocabulary, build_classic
from BLIP import CaptionTokenizer
from captioning.config import Config
from captioning.data import MEAN, STD, preprocess_caption, read_split
from captioning.models.lengths import check_lengths
from captioning.runtime.errors import UserError

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
    if not restored and config.encoder_weights == "none" and config.encoder_lr == 0:
        raise UserError(
            "encoder_weights is none and encoder_lr 0: the image encoder would stay as it is made "
            "up; give it weights (default or a file), or a learning rate above 0"
        )
    captioner = build_classic(
        encoder=_encoder(config, "none" if restored else config.encoder_weights),
        tokenizer=_tokenizer(config, words),
        objective=config.build_objective(),
        word_vectors=None if restored else config.word_vectors,
        **{name: getattr(config, name) for name in BUILT_AS_NAMED},
    )
    check_lengths(config, len(captioner.prompt_ids))
    return captioner


def _encoder(config: Config, weights: str) -> ImageEncoder:
    return ImageEncoder(
        config.encoder,
        weights,
        config.encoder_dim,
        config.encoder_size,
        config.encoder_norm,
        finetune=config.encoder_lr > 0,
        mean=MEAN,
        std=STD,
        image_size=config.image_size,
    )


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


def check_batch(config: Config, captioner) -> None:
    """Raise UserError where a batch of images is too small to train the image encoder with."""
    least = captioner.encoder.smallest_batch if config.model != "blip" else 1
    if config.batch_size < least:
        raise UserError(
            f"batch_size is {config.batch_size}; {config.encoder} normalises over a batch, and has "
            f"one place at image_size {config.image_size}: it must be {least} or more"
        )


def saved_beside_weights(captioner) -> dict[str, list[str]]:
    """What a checkpoint of a captioner needs besides its weights: the words that it has counted."""
    tokenizer = captioner.tokenizer
    return {"vocabulary": tokenizer.words} if isinstance(tokenizer, Vocabulary) else {}
