"""Builds a captioner from a configuration or from a checkpoint alone, and loads its weights."""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Callable, Optional

import torch
from PIL import Image
from pydantic import ValidationError
from torch import nn

from BLIP.adapter import add_adapter, load_trained_state, merge_adapter, read_base
from BLIP.checkpoint import ADAPTER, check_finite, load_weights, read_checkpoint, run_config
from captioning.captioners.interface import BuildContext, Captioner, CaptionerPackage, Tokenizer
from captioning.captioners.registry import package_of
from captioning.config import Config, explained, load_config, parse_config
from captioning.data.dataset import preprocess_caption
from captioning.data.image import MEAN, STD, Preprocessing, decode, evaluation_transform, normalise
from captioning.data.sources import read_split
from captioning.files.stores import without_secrets
from captioning.models.prompts import prompt_is_question
from captioning.models.skip_init import SkipInit
from captioning.runtime.errors import UserError, value_errors_as_user_errors
from captioning.runtime.registry import load


def captioner_from(
    config: Config,
    checkpoint: Optional[str],
    resumed: Optional[Mapping[str, Any]] = None,
    for_training: bool = False,
) -> tuple[nn.Module, str]:
    """Return the captioner, and a log line that says what was loaded. Raises UserError.

    checkpoint: the name of the weights to load; None for random weights, which depend only on the
    seed. resumed: if `checkpoint` is None, the content of a checkpoint whose weights the caller
    will load, or None. for_training: whether the captioner will be trained. An adapter in a
    checkpoint is merged into its base weights, unless `lora` is set.
    """
    package = package_of(config.model)
    torch.manual_seed(config.seed)
    with value_errors_as_user_errors():  # packages raise ValueError for mistakes of the user
        content = read_checkpoint(checkpoint, config.trust_checkpoint) if checkpoint else resumed
        name = without_secrets(checkpoint) if checkpoint else "the checkpoint"
        _check_division(config, content, name)
        if not for_training:
            _check_null_image(config, content, name)
        adapter = content if ADAPTER in (content or {}) else None
        base, base_name = content, name
        if adapter or config.lora:
            base, base_name = _base(config, package, content, name)
        context = BuildContext(
            content=base,
            name=base_name,
            captions=partial(training_captions, config),
            word_pieces=word_pieces,
            mean=MEAN,
            std=STD,
        )
        fills_weights = base is not None and (checkpoint or adapter)
        with SkipInit() if fills_weights else nullcontext():
            captioner = package.build(config, context)
        check_interface(captioner)
        _check_lengths(config, captioner)
        report = f"no checkpoint: {package.origin(config)}"
        if fills_weights:
            report = f"loaded {name}: {load_weights(captioner, base['model'], base_name)}"
        if config.lora:
            _add_lora(config, package, captioner, base_name)
            report += "; its weights are frozen, lora's are new"
        if adapter and not config.lora:
            merge_adapter(captioner.get_submodule(package.LORA_MODULE), adapter, name)
            report = f"loaded {name}: its adapter is merged into {base_name}"
        elif adapter and checkpoint:
            check_finite(adapter["model"], name)
            load_trained_state(captioner, adapter["model"], name)
            report = f"loaded {name}: every key matched"
    return captioner, report


def _add_lora(config: Config, package: CaptionerPackage, captioner: nn.Module, base: str) -> None:
    """Add LoRA's layers to a captioner. base: the name of the frozen weights."""
    adapter = {
        "peft_type": "LORA",
        "r": config.lora.r,
        "lora_alpha": config.lora.alpha,
        "lora_dropout": config.lora.dropout,
        "target_modules": config.lora.target_modules,
        "exclude_modules": list(package.LORA_EXCLUDED),
        "base_model_name_or_path": base,
    }
    name = f"lora with target_modules {config.lora.target_modules!r}"
    add_adapter(captioner.get_submodule(package.LORA_MODULE), adapter, name)


def _base(
    config: Config, package: CaptionerPackage, content: Optional[Mapping[str, Any]], name: str
) -> tuple[Optional[Mapping[str, Any]], str]:
    """Return content and name of the weights that LoRA adapts; no content if `build` loads them.

    content, name: the checkpoint, which has an adapter or, for a new adapter, these weights.
    """
    is_adapter, key = ADAPTER in (content or {}), getattr(package, "LORA_BASE", "pretrained")
    if key == "pretrained":
        return read_base(content, name, config.trust_checkpoint) if is_adapter else (content, name)
    if content is not None and not is_adapter:
        raise UserError(
            f"{name} holds a whole model, but lora adapts the model given by {key}: export {name} "
            f"with python -m captioning.export, and set {key} to the result"
        )
    return None, getattr(config, key).removeprefix("hf://")


def _check_null_image(config: Config, content: Optional[Mapping[str, Any]], name: str) -> None:
    """Raise UserError if decoding uses the null image, but training used one of a former version.

    content: the checkpoint's content. name: the checkpoint's name, for the error.
    """
    trained = run_config(content or {})
    is_former = "null_image" in trained and trained.get("drop_image")
    if is_former and (config.guidance_scale != 1 or config.rerank == "mmi"):
        raise UserError(
            f"{name} was trained with null_image {trained['null_image']}, which commit 46748d31 "
            "was the last to support: set guidance_scale to 1 and rerank to another method than mmi"
        )


def word_pieces(name: str) -> Tokenizer:
    """Return BERT's tokeniser `name`. Its module is imported only if a captioner uses it."""
    return load("BLIP.tokenizer:CaptionTokenizer")(name)


def _check_division(config: Config, content: Optional[Mapping[str, Any]], name: str) -> None:
    """Raise UserError if the checkpoint may have been trained on photos of val or test.

    content: the checkpoint's content. name: the checkpoint's name, for the error.
    """
    trained = (content or {}).get("config")
    same_data = isinstance(trained, dict) and trained.get("train_file") == config.train_file
    if same_data and config.split and trained.get("split") != config.split:
        raise UserError(
            f"{name} was trained on train_file with split {trained.get('split') or 'unset'}, now "
            f"split is {config.split}: it would be tested on photos that it was trained on; use "
            "the same split, or start from another checkpoint"
        )


def training_captions(config: Config) -> Iterator[str]:
    """Yield the preprocessed captions of the training split. Raises UserError."""
    for sample in read_split(config, "train"):
        for caption in sample.captions:
            yield preprocess_caption(caption, config.max_words)


def preprocessing_of(config: Config) -> Preprocessing:
    """Return the image preprocessing of the configuration's captioner. Raises UserError."""
    with value_errors_as_user_errors():
        functions = package_of(config.model).preprocessing(config)
    if functions is None:
        from captioning.data.augmentation import training_transform

        augmentation, strength = config.augmentation, config.augmentation_strength
        return Preprocessing(
            evaluation=evaluation_transform(config.image_size),
            training=training_transform(config.image_size, augmentation, strength, config.exif),
            normalise=normalise,
            is_deterministic=config.augmentation == "none",
        )
    evaluation, training, *optional = functions
    training = partial(_decode_and_transform, training, config.exif)
    return Preprocessing(evaluation, training, *optional, takes_prompt=prompt_is_question(config))


def _decode_and_transform(
    transform: Callable, exif: bool, image: Image.Image, *prompt: Optional[str]
) -> Any:
    return transform(decode(image, exif), *prompt)


def check_interface(captioner: nn.Module) -> None:
    """Raise TypeError if a captioner lacks a member of `Captioner`."""
    names = [*vars(Captioner), *Captioner.__annotations__]
    missing = [n for n in names if not n.startswith("_") and not hasattr(captioner, n)]
    if missing:
        raise TypeError(f"{type(captioner).__name__} lacks {', '.join(missing)}: see {Captioner}")


def _check_lengths(config: Config, captioner: Captioner) -> None:
    """Raise UserError if max_length or max_tokens leaves no room or exceeds max_positions."""
    prompt, positions = len(captioner.prompt_ids), captioner.max_positions
    for key, minimum in {"max_length": prompt + 1, "max_tokens": prompt + 2}.items():
        length = getattr(config, key)
        if length < minimum or (positions is not None and length > positions):
            limits = f"{minimum} or more" if positions is None else f"{minimum} to {positions}"
            model = "" if positions is None else " and this decoder"
            raise UserError(
                f"{key} is {length}; with this prompt, of {prompt} tokens,{model} it must be "
                f"{limits}"
            )


def load_trained(
    checkpoint: str, config: Optional[str], device: torch.device
) -> tuple[Config, nn.Module]:
    """Return the configuration, and the captioner in evaluation mode on `device`.

    checkpoint: the name of a run's checkpoint, which contains a configuration, or of other weights.
    config: a YAML file, needed for other weights. Raises UserError.
    """
    settings = trained_config(checkpoint, config)
    captioner, _ = captioner_from(settings, checkpoint)
    return settings, captioner.to(device).eval()


def trained_config(
    checkpoint: str, config: Optional[str], changes: Optional[Mapping[str, Any]] = None
) -> Config:
    """Return the configuration that `load_trained` uses, without loading weights.

    checkpoint, config: see `load_trained`. changes: {key: value} that replace values of the
    configuration. Raises UserError.
    """
    if config is not None:
        return load_config(config, flags=changes)
    with value_errors_as_user_errors():
        content = read_checkpoint(checkpoint, mapped=True)
    trained = content.get("config")
    if isinstance(trained, dict):  # `_check_null_image` checks this key of former versions
        trained = {key: value for key, value in trained.items() if key != "null_image"}
    try:
        values = parse_config(trained).model_dump()
    except ValidationError as error:
        name = without_secrets(checkpoint)
        raise UserError(
            f"{name} does not contain the configuration of a run: give one with --config"
        ) from error
    values.update(changes or {})
    try:
        return parse_config(values)
    except ValidationError as error:
        raise UserError(explained(error, values)) from error
