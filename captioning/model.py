"""From a configuration to the captioner it describes, weights loaded."""

from pathlib import Path
from typing import Optional

import torch

from BLIP import BlipCaptioner, build_captioner, load_weights, read_checkpoint
from captioning.config import Config, VitSizes
from captioning.errors import UserError

REPOSITORY = Path(__file__).resolve().parent.parent


def captioner_from(config: Config, checkpoint: Optional[str]) -> tuple[BlipCaptioner, str]:
    """The captioner, with the weights of `checkpoint` if any, and a line that says what was loaded.

    Made-up weights depend on the seed alone. Raises UserError.
    """
    torch.manual_seed(config.seed)
    vit = config.vit.model_dump() if isinstance(config.vit, VitSizes) else config.vit
    try:
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
        )
        _check_lengths(config, captioner)
        if checkpoint is None:
            return captioner, "no checkpoint: the weights are made up"
        content = read_checkpoint(checkpoint, config.trust_checkpoint)
        report = load_weights(captioner, content["model"], checkpoint)
    except ValueError as error:  # every error of BLIP's that a user can cause is one
        raise UserError(str(error)) from error
    return captioner, f"loaded {checkpoint}: {report}"


def _check_lengths(config: Config, captioner: BlipCaptioner) -> None:
    """The prompt must leave room for a caption, and the decoder have a position for every token."""
    prompt = len(captioner.prompt_ids)
    positions = captioner.text_decoder.max_length
    for key, least in {"max_length": prompt + 1, "max_tokens": prompt + 2}.items():
        length = getattr(config, key)
        if not least <= length <= positions:
            raise UserError(
                f"{key} is {length}; with this prompt, of {prompt} tokens, and this med_config "
                f"it must be {least} to {positions}"
            )


def _med_config(config: Config):
    """As given, or, where no such file is in the working folder, the repository's."""
    if isinstance(config.med_config, str) and not Path(config.med_config).exists():
        return REPOSITORY / config.med_config
    return config.med_config
