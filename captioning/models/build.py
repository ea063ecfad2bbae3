"""Builds a captioner from a configuration or from a checkpoint alone, and loads its weights."""

import os
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Callable, Optional

import torch
from PIL import Image
from pydantic import ValidationError
from torch import nn

from BLIP.checkpoint import (
    ADAPTER,
    file_content,
    load_weights,
    path_beside,
    read_checkpoint,
    run_config,
    settings_in,
)
from BLIP.skip_init import SkipInit
from BLIP.tokenizer import CaptionTokenizer
from captioning.captioners.interface import BuildContext, Captioner, Tokenizer
from captioning.captioners.registry import package_of
from captioning.config import Config, explained, load_config, parse_config
from captioning.data.dataset import preprocess_caption
from captioning.data.image import MEAN, STD, Preprocessing, decode, evaluation_transform
from captioning.data.sources import read_split
from captioning.files.stores import without_secrets
from captioning.models.checkpoints import resolve
from captioning.models.lora import adapt, base_of, base_settings
from captioning.runtime.errors import UserError, value_errors_as_user_errors


def captioner_from(
    config: Config,
    checkpoint: Optional[str],
    resumed: Optional[Mapping[str, Any]] = None,
) -> tuple[nn.Module, str]:
    """Return the captioner, and a log line that says what was loaded. Raises UserError.

    - checkpoint: the name of the weights to load; None for random weights, which depend only on the
      seed
    - resumed: if `checkpoint` is None, the content of a checkpoint whose weights the caller will
      load, or None

    An adapter in a checkpoint is merged into its base weights, unless `lora` is set.
    """
    package = package_of(config.model)
    torch.manual_seed(config.seed)
    with value_errors_as_user_errors():  # packages raise ValueError for mistakes of the user
        content, name = resumed or {}, "the checkpoint"
        if checkpoint:
            content = read_checkpoint(checkpoint, config.trust_checkpoint)
            name = without_secrets(checkpoint)
        _check_trained(config, content, name)
        base, base_name = content, name
        has_adapter = config.lora is not None or ADAPTER in content
        if has_adapter:
            base, base_name = base_of(config, content, name)
        # Without a base, `build` loads the weights that an adapter adapts.
        context = _context(config, {**base, **content} if base else {}, base_name)
        fills_weights = base and (checkpoint or has_adapter)
        with SkipInit() if fills_weights else nullcontext():
            captioner = package.build(config, context)
        _check_lengths(config, captioner)
        report = f"no checkpoint: {package.origin(config)}"
        if fills_weights:
            report = f"loaded {name}: {load_weights(captioner, base['model'], base_name)}"
        if has_adapter:
            report = adapt(config, captioner, content, name, base_name)
    return captioner, report


def tokenizer_of(config: Config) -> Tokenizer:
    """Return the tokenizer of a new captioner, without building the captioner. Raises UserError.

    It is the one in `pretrained`, if this is a file here that has one.
    """
    name = config.pretrained or ""
    with value_errors_as_user_errors():
        is_here = os.path.exists(name)
        content = read_checkpoint(name, config.trust_checkpoint) if is_here else {}
        return package_of(config.model).build_tokenizer(config, _context(config, content))


def _context(config: Config, content: Mapping[str, Any], name: str = "") -> BuildContext:
    return BuildContext(
        content=content,
        name=name,
        captions=partial(_training_captions, config),
        word_pieces=lambda key: CaptionTokenizer(file_content(content, "tokenizer", key)),
        mean=MEAN,
        std=STD,
    )


def _check_trained(config: Config, content: Mapping[str, Any], name: str) -> None:
    """Raise UserError if the run that wrote a checkpoint does not allow this use of its weights.

    - It may have been trained on photos that are now in val or test
    - Decoding uses the null image, and training used one of a former version

    content: the checkpoint's content. name: the checkpoint's name, for the error.
    """
    trained = run_config(content)
    same_data = "train_file" in trained and trained["train_file"] == config.train_file
    if same_data and config.split and trained.get("split") != config.split:
        raise UserError(
            f"{name} was trained on train_file with split {trained.get('split') or 'unset'}, now "
            f"split is {config.split}: it would be tested on photos that it was trained on; use "
            "the same split, or start from another checkpoint"
        )
    uses_null = config.guidance_scale != 1 or config.rerank == "mmi"
    if uses_null and "null_image" in trained and trained.get("drop_image"):
        raise UserError(
            f"{name} was trained with null_image {trained['null_image']}, which commit 46748d31 "
            "was the last to support: set guidance_scale to 1 and rerank to another method than mmi"
        )


def _training_captions(config: Config) -> Iterator[str]:
    """Yield the preprocessed captions of the training split. Raises UserError."""
    for sample in read_split(config, "train"):
        for caption in sample.captions:
            yield preprocess_caption(caption, config.max_words)


def preprocessing_of(config: Config) -> Preprocessing:
    """Return the image preprocessing of the configuration's captioner. Raises UserError."""
    package = package_of(config.model)
    with value_errors_as_user_errors():
        functions = package.preprocessing(config)
    if functions is None:
        from captioning.data.augmentation import training_transform

        augmentation, strength = config.augmentation, config.augmentation_strength
        return Preprocessing(
            evaluation=evaluation_transform(config.image_size),
            training=training_transform(config.image_size, augmentation, strength, config.exif),
            is_deterministic=config.augmentation == "none",
        )
    evaluation, training, *optional = functions
    training = partial(_decode_and_transform, training, config.exif)
    return Preprocessing(evaluation, training, *optional, takes_prompt=package.PROMPT_IS_QUESTION)


def _decode_and_transform(
    transform: Callable, exif: bool, image: Image.Image, *prompt: Optional[str]
) -> Any:
    return transform(decode(image, exif), *prompt)


def _check_lengths(config: Config, captioner: Captioner) -> None:
    """Raise UserError if max_length or max_tokens leaves no room or exceeds max_positions."""
    prompt, positions = len(captioner.prompt_ids), captioner.max_positions
    for key, minimum in {"max_length": prompt + 1, "max_tokens": prompt + 2}.items():
        length = getattr(config, key)
        if not minimum <= length <= (positions or length):
            limit = f"to {positions}, the decoder's limit" if positions else "or more"
            raise UserError(
                f"{key} is {length}; with this prompt, of {prompt} tokens, it must be {minimum} "
                f"{limit}"
            )


def load_trained(
    checkpoint: str, config: Optional[str], device: torch.device
) -> tuple[Config, nn.Module]:
    """Return the configuration, and the captioner in evaluation mode on `device`.

    checkpoint: a run's folder or checkpoint, which contains a configuration, or other weights.
    config: a YAML file that replaces it. Raises UserError.
    """
    checkpoint = resolve(checkpoint)
    settings = trained_config(checkpoint, config)
    captioner, _ = captioner_from(settings, checkpoint)
    return settings, captioner.to(device).eval()


def trained_config(
    checkpoint: str, config: Optional[str], changes: Optional[Mapping[str, Any]] = None
) -> Config:
    """Return the configuration that `load_trained` uses, without loading weights.

    Without `config`, it is the one in the checkpoint of a run. A BLIP that another program trained
    has default values, except for its sizes; its image_root is empty.

    - checkpoint, config: see `load_trained`
    - changes: {key: value} that replace values of the configuration

    Raises UserError.
    """
    changes = changes or {}
    if config is not None:
        return load_config(config, flags=changes)
    name = without_secrets(checkpoint)
    with value_errors_as_user_errors():
        content = read_checkpoint(checkpoint, changes.get("trust_checkpoint", False))
        if ADAPTER in content and not run_config(content):  # of another program
            content = base_settings(content, name)
    values = run_config(content)
    if "output_dir" not in values:
        try:
            settings = settings_in(content, content["model"], name)
        except ValueError as error:
            raise UserError(
                f"{name} does not contain the configuration of a run, and has no image encoder of "
                "BLIP: give a configuration with --config"
            ) from error
        settings["tokenizer"] = values.get("tokenizer", "bert-base-uncased")
        values = {"image_root": "", "ann_root": "", "output_dir": "output", **settings}
    models = (key for key in ("vlm", "clip_model", "itm_model") if values.get(key))
    values = {**values, **{key: path_beside(values[key], name) for key in models}, **changes}
    values.pop("null_image", None)  # of former versions: `_check_trained` checks it
    try:
        return parse_config(values)
    except ValidationError as error:
        raise UserError(f"{name}: {explained(error, values)}") from error
