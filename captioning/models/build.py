"""From a configuration to the captioner it describes, weights loaded."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Optional

import torch
from torch import nn

from BLIP import CaptionTokenizer, load_weights, read_checkpoint
from captioning.captioners.interface import BuildContext, Captioner
from captioning.captioners.registry import CAPTIONERS
from captioning.config import Config
from captioning.data import MEAN, STD, Preprocessing, preprocess_caption, read_split
from captioning.runtime.errors import UserError


def captioner_from(
    config: Config, checkpoint: Optional[str], resumed: Optional[Mapping[str, Any]] = None
) -> tuple[nn.Module, str]:
    """The captioner, with the weights of `checkpoint` if any, and a line that says what was loaded.

    resumed: the content of the checkpoint whose weights the caller will put in place. Made-up
    weights depend on the seed alone. Raises UserError.
    """
    package = CAPTIONERS[config.model]
    torch.manual_seed(config.seed)
    try:
        content = read_checkpoint(checkpoint, config.trust_checkpoint) if checkpoint else resumed
        name = checkpoint or "the checkpoint"
        captions = partial(training_captions, config)
        context = BuildContext(content, name, captions, CaptionTokenizer, MEAN, STD)
        captioner = package.build(config, context)
        _check_lengths(config, captioner)
        if checkpoint is None:
            return captioner, f"no checkpoint: {package.origin(config)}"
        report = load_weights(captioner, content["model"], checkpoint)
    except ValueError as error:  # every error of a captioner's that a user can cause is one
        raise UserError(str(error)) from error
    return captioner, f"loaded {checkpoint}: {report}"


def training_captions(config: Config) -> Iterator[str]:
    """Those of the training split, cleaned up. Raises UserError."""
    for sample in read_split(config, "train"):
        for caption in sample.captions:
            yield preprocess_caption(caption, config.max_words)


def preprocessing_of(config: Config) -> Preprocessing:
    """How images are made into what the configuration's captioner takes."""
    own = CAPTIONERS[config.model].preprocessing(config)
    if own is not None:
        return Preprocessing(*own)
    return Preprocessing.of_blip(config.image_size, config.augmentation)


def _check_lengths(config: Config, captioner: Captioner) -> None:
    """Raise UserError where max_length or max_tokens does not suit the prompt or the captioner."""
    prompt, positions = len(captioner.prompt_ids), captioner.max_positions
    for key, least in {"max_length": prompt + 1, "max_tokens": prompt + 2}.items():
        length = getattr(config, key)
        if length < least or (positions is not None and length > positions):
            limits = f"{least} or more" if positions is None else f"{least} to {positions}"
            model = "" if positions is None else " and this med_config"
            raise UserError(
                f"{key} is {length}; with this prompt, of {prompt} tokens,{model} it must be "
                f"{limits}"
            )
