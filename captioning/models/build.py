"""From a configuration to the captioner it describes, weights loaded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import torch
from torch import nn

from BLIP import BlipCaptioner, build_captioner, load_weights, read_checkpoint
from captioning.config import Config, VitSizes
from captioning.models.classic_model import build_from
from captioning.models.lengths import check_lengths
from captioning.runtime.errors import UserError

REPOSITORY = Path(__file__).resolve().parent.parent


def captioner_from(
    config: Config, checkpoint: Optional[str], resumed: Optional[Mapping[str, Any]] = None
) -> tuple[nn.Module, str]:
    """The captioner, with the weights of `checkpoint` if any, and a line that says what was loaded.

    resumed: the content of the checkpoint whose weights the caller will put in place. Made-up
    weights depend on the seed alone. Raises UserError.
    """
    torch.manual_seed(config.seed)
    try:
        content = read_checkpoint(checkpoint, config.trust_checkpoint) if checkpoint else resumed
        if config.model == "blip":
            captioner = _blip_from(config)
        else:
            captioner = build_from(config, content is not None, _words(content, checkpoint))
        if checkpoint is None:
            return captioner, f"no checkpoint: {_origin(config)}"
        report = load_weights(captioner, content["model"], checkpoint)
    except ValueError as error:  # every error of a captioner's that a user can cause is one
        raise UserError(str(error)) from error
    return captioner, f"loaded {checkpoint}: {report}"


def _words(content: Optional[Mapping[str, Any]], name: Optional[str]) -> Optional[list[str]]:
    """The vocabulary that a checkpoint holds, None where it holds none."""
    words = content.get("vocabulary") if content else None
    text = isinstance(words, list) and all(isinstance(word, str) for word in words)
    if words is not None and not text:
        raise UserError(f"{name or 'the checkpoint'}: its vocabulary is no list of words")
    return words


def _origin(config: Config) -> str:
    if config.model == "blip" or config.encoder_weights == "none":
        return "the weights are made up"
    return f"the weights are made up, but for the image encoder's ({config.encoder_weights})"


def _blip_from(config: Config) -> BlipCaptioner:
    vit = config.vit.model_dump() if isinstance(config.vit, VitSizes) else config.vit
    captioner = build_captioner(
        tokenizer=config.tokenizer,
        vit=vit,
        image_size=config.image_size,
        med_config=_med_config(config),
        objective=config.build_objective(),
        prompt=config.prompt,
        vit_grad_ckpt=config.vit_grad_ckpt,
        vit_ckpt_layer=config.vit_ckpt_layer,
        max_tokens=config.max_tokens,
        first_token_shift=config.first_token_shift,
    )
    check_lengths(config, len(captioner.prompt_ids), captioner.text_decoder.max_length)
    return captioner


def _med_config(config: Config):
    """As given, or, where no such file is in the working folder, the repository's."""
    if isinstance(config.med_config, str) and not Path(config.med_config).exists():
        return REPOSITORY / config.med_config
    return config.med_config
