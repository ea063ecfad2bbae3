"""Models and processors of transformers by name, with one line for whatever they lack."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch
from torch import nn

OLDEST = 5  # the first number of transformers' versions
ITS_OWN_CODE = "trust_remote_code"


class Parts(NamedTuple):
    """What a folder of a model has beside its weights. processor: None where the image processor
    and the tokenizer are by themselves."""

    name: str
    config: Any
    processor: Optional[Any]
    image_processor: Any
    tokenizer: Any


def check_library() -> None:
    """Raise ValueError for a transformers that has too few of these models."""
    found = version("transformers")
    if int(found.partition(".")[0]) < OLDEST:
        raise ValueError(
            f"model vlm needs transformers {OLDEST}.0 or later, which needs Python 3.10 or later; "
            f"this is transformers {found}"
        )


@lru_cache(maxsize=4)
def parts_of(name: str) -> Parts:
    """Configuration, processor and tokenizer of a folder or hub name. Raises ValueError."""
    check_library()
    # Workers that load images are forked after the tokenizer was used.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import transformers

    source = _source(name)
    with _one_line(name):
        config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
    _check_makes_text(name, config)
    with _one_line(name):
        processor = transformers.AutoProcessor.from_pretrained(source, trust_remote_code=False)
    if hasattr(processor, "image_processor") and hasattr(processor, "tokenizer"):
        image_processor, tokenizer = processor.image_processor, processor.tokenizer
    else:
        with _one_line(name):
            image_processor = transformers.AutoImageProcessor.from_pretrained(source)
            tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        processor = None
    return Parts(name, config, processor, image_processor, tokenizer)


def model_of(name: str, weights: bool) -> nn.Module:
    """The model in float32, in evaluation mode; without `weights` they are made up.

    Raises ValueError.
    """
    import transformers

    transformers.utils.logging.disable_progress_bar()
    config, source = parts_of(name).config, _source(name)
    kind = transformers.AutoModelForImageTextToText
    with _one_line(name):
        if weights:
            how = {"dtype": torch.float32, "trust_remote_code": False, "output_loading_info": True}
            model, told = kind.from_pretrained(source, **how)
            lacking = sorted(told["missing_keys"])
            if lacking:
                raise ValueError(f"{len(lacking)} weights are missing, such as {lacking[0]}")
            return model
        model = kind.from_config(config, dtype=torch.float32).eval()
    with suppress(OSError):  # it has none: the one made of the configuration stays
        model.generation_config = transformers.GenerationConfig.from_pretrained(source)
    return model


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The layers that the library can compute again in backward; none holds another."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    found: list[nn.Module] = []
    within: set[nn.Module] = set()
    for module in model.modules():  # what holds others comes before them
        if isinstance(module, GradientCheckpointingLayer) and module not in within:
            found.append(module)
            within.update(module.modules())
    return found


def recompute(model: nn.Module) -> None:
    """Let those layers keep no activations in training. Raises ValueError where they cannot."""
    settings = {"use_reentrant": False}
    if hasattr(model, "activation_checkpointing_enable"):  # its name since transformers 5.20
        model.activation_checkpointing_enable(settings)
    else:
        model.gradient_checkpointing_enable(settings)


def _source(name: str) -> str:
    """As transformers wants it; ValueError for a folder that is not there."""
    source = name[len("hf://") :] if name.startswith("hf://") else name
    looks_like_a_path = source.startswith((".", "/", "~")) or source.count("/") != 1
    if looks_like_a_path and not Path(source).is_dir():
        raise ValueError(f"vlm is {name}: there is no such folder")
    return source


def _check_makes_text(name: str, config: Any) -> None:
    from transformers import AutoModelForImageTextToText

    kind = config.model_type
    if kind == "blip":
        raise ValueError(f"vlm is {name}, a BLIP: set model: blip, and see BLIP.convert")
    if type(config) not in AutoModelForImageTextToText._model_mapping:
        raise ValueError(f"vlm is {name}, a {kind}, which makes no text of images")


@contextmanager
def _one_line(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a library raises whatever a broken folder makes it stumble over
        lines = " ".join(str(error).split())
        if ITS_OWN_CODE in lines:
            lines = "it brings code of its own, which is not run here"
        first = lines.split(". ")[0][:200] or type(error).__name__
        raise ValueError(f"vlm is {name}, which cannot be loaded: {first}") from error
