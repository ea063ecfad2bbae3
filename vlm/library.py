"""Loads models and processors of transformers by name; every failure is one line."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

import torch
from torch import nn

OLDEST = 5  # major version of transformers
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
REPACKS = "support_avx512bf16_for_cpu"  # attribute of bitsandbytes' layers
TRUST_REMOTE_CODE = "trust_remote_code"


class Parts(NamedTuple):
    """What a model's folder holds besides weights. processor: None if the image processor and the
    tokenizer are separate."""

    name: str
    config: Any
    processor: Optional[Any]
    image_processor: Any
    tokenizer: Any


def check_library() -> None:
    """Raise ValueError if transformers is too old."""
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
    # Data loader workers are forked after the tokenizer was used.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import transformers

    source = _resolve(name)
    with _one_line(name):
        config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
    _check_image_to_text(name, config)
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


def model_of(name: str, weights: bool, four_bit: Optional[str] = None) -> nn.Module:
    """The model in float32 and evaluation mode, with random weights if not `weights`.

    four_bit: load the linear layers in four bits and compute in this precision. Raises ValueError.
    """
    import transformers

    if four_bit is not None and find_spec("bitsandbytes") is None:
        raise ValueError("lora.load_in_4bit needs bitsandbytes: pip install bitsandbytes")

    transformers.utils.logging.disable_progress_bar()
    config, source = parts_of(name).config, _resolve(name)
    kind = transformers.AutoModelForImageTextToText
    with _one_line(name):
        if weights:
            how = {"dtype": torch.float32, "trust_remote_code": False, "output_loading_info": True}
            if four_bit is not None:
                how["quantization_config"] = transformers.BitsAndBytesConfig(
                    load_in_4bit=True,
                    bnb_4bit_quant_type="nf4",
                    bnb_4bit_use_double_quant=True,
                    bnb_4bit_compute_dtype=DTYPES[four_bit],
                )
            model, loading_info = kind.from_pretrained(source, **how)
            missing = sorted(loading_info["missing_keys"])
            if missing:
                raise ValueError(f"{len(missing)} weights are missing, such as {missing[0]}")
            _disable_repacking(model)
            return model
        model = kind.from_config(config, dtype=torch.float32).eval()
    with suppress(OSError):  # it has none: keep the one made from the configuration
        model.generation_config = transformers.GenerationConfig.from_pretrained(source)
    return model


def _disable_repacking(model: nn.Module) -> None:
    """Stop bitsandbytes from repacking 4-bit weights on some CPUs: they could not be trained."""
    for module in model.modules():
        if hasattr(module, REPACKS):
            setattr(module, REPACKS, False)


def checkpointed_layers(model: nn.Module) -> list[nn.Module]:
    """The layers that support gradient checkpointing; none contains another."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    found: list[nn.Module] = []
    within: set[nn.Module] = set()
    for module in model.modules():  # parents come before their children
        if isinstance(module, GradientCheckpointingLayer) and module not in within:
            found.append(module)
            within.update(module.modules())
    return found


def recompute(model: nn.Module) -> None:
    """Turn on gradient checkpointing. Raises ValueError if the model does not support it."""
    settings = {"use_reentrant": False}
    if hasattr(model, "activation_checkpointing_enable"):  # its name since transformers 5.20
        model.activation_checkpointing_enable(settings)
    else:
        model.gradient_checkpointing_enable(settings)


def _resolve(name: str) -> str:
    """The name that transformers expects. Raises ValueError for a missing folder."""
    source = name[len("hf://") :] if name.startswith("hf://") else name
    looks_like_a_path = source.startswith((".", "/", "~")) or source.count("/") != 1
    if looks_like_a_path and not Path(source).is_dir():
        raise ValueError(f"vlm is {name}: there is no such folder")
    return source


def _check_image_to_text(name: str, config: Any) -> None:
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
    except Exception as error:  # a broken folder raises any exception
        reason = one_line(error).split(". ")[0]
        if TRUST_REMOTE_CODE in str(error):
            reason = "it brings code of its own, which is not run here"
        raise ValueError(f"vlm is {name}, which cannot be loaded: {reason}") from error


def one_line(error: Exception, most: Optional[int] = 200) -> str:
    """The error's message on one line of at most `most` characters, or its type."""
    return " ".join(str(error).split())[:most] or type(error).__name__


def exit_code(program: Callable[[], str]) -> int:
    """Run a program and print its result; return 0, or 2 after a one-line error."""
    try:
        print(program())
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {one_line(error, None)}", file=sys.stderr)
        return 2
    return 0
