"""Loads transformers models and processors by name. Every failure is a one-line ValueError."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from textwrap import shorten
from typing import Any, NamedTuple, Optional

import torch
from torch import nn

OLDEST_VERSION = 5  # major version of transformers
NO_CODE = {"trust_remote_code": False}  # Python code of a model's folder is never executed
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Parts(NamedTuple):
    """The content of a model's folder without its weights.

    - name: the value of the key `vlm`.
    - processor: the joint processor of images and text; of a folder without one, of images.
    """

    name: str
    config: Any
    processor: Any
    tokenizer: Any


def check_library() -> None:
    """Raise ValueError if transformers is older than OLDEST_VERSION."""
    installed = version("transformers")
    if int(installed.partition(".")[0]) < OLDEST_VERSION:
        raise ValueError(
            f"model vlm needs transformers {OLDEST_VERSION}.0 or later, which needs Python 3.10 or "
            f"later; this is transformers {installed}"
        )


@lru_cache(maxsize=4)
def load_parts(name: str) -> Parts:
    """Load configuration, processor and tokenizer from a folder or the hub. Raises ValueError."""
    check_library()
    # The library tokenizers warns if a process is forked after its first use. The workers of data
    # loaders are such forks, and this setting avoids the warning.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import transformers

    source = _source(name)
    with one_line_errors(f"vlm is {name}, which"):
        config = transformers.AutoConfig.from_pretrained(source, **NO_CODE)
        _check_image_to_text(config)
        processor = transformers.AutoProcessor.from_pretrained(source, **NO_CODE)
        if not (hasattr(processor, "image_processor") and hasattr(processor, "tokenizer")):
            processor = transformers.AutoImageProcessor.from_pretrained(source, **NO_CODE)
        tokenizer = getattr(processor, "tokenizer", None)
        tokenizer = tokenizer or transformers.AutoTokenizer.from_pretrained(source, **NO_CODE)
    return Parts(name, config, processor, tokenizer)


def load_model(name: str, pretrained: bool, four_bit: Optional[str] = None) -> nn.Module:
    """Load the model in float32 and evaluation mode. Raises ValueError.

    - name: a value of the key `vlm`.
    - pretrained: whether to load the weights; otherwise they are random.
    - four_bit: a key of DTYPES; if given, quantise the linear layers to 4 bits and compute in this
      precision.
    """
    import transformers

    if four_bit is not None and find_spec("bitsandbytes") is None:
        raise ValueError("lora.load_in_4bit needs bitsandbytes: pip install bitsandbytes")

    transformers.utils.logging.disable_progress_bar()
    config, source = load_parts(name).config, _source(name)
    auto_class = transformers.AutoModelForImageTextToText
    options = {"dtype": torch.float32, **NO_CODE}
    if not pretrained:
        model = auto_class.from_config(config, **options).eval()
        with suppress(OSError):  # without a file, keep the generation config derived from `config`
            model.generation_config = transformers.GenerationConfig.from_pretrained(source)
        return model
    if four_bit is not None:
        options["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=DTYPES[four_bit],
        )
    with one_line_errors(f"vlm is {name}, which"):
        model, report = auto_class.from_pretrained(source, output_loading_info=True, **options)
        if missing := sorted(report["missing_keys"]):
            raise ValueError(f"{len(missing)} weights are missing, such as {missing[0]}")
    return model


def _source(name: str) -> str:
    """Return the folder or hub name, of a value of the key `vlm`, that `from_pretrained` takes."""
    source = name.removeprefix("hf://")
    can_be_on_the_hub = source[0] not in "./" and source.count("/") == 1
    if not (can_be_on_the_hub or os.path.isdir(source)):
        raise ValueError(f"vlm is {name}: there is no such folder")
    return source


def _check_image_to_text(config: Any) -> None:
    from transformers import AutoModelForImageTextToText

    if config.model_type == "blip":
        raise ValueError("it is a BLIP: set model: blip, and pretrained to its name")
    if type(config) not in AutoModelForImageTextToText._model_mapping:
        raise ValueError(f"type {config.model_type} does not generate text from images")


@contextmanager
def one_line_errors(subject: str) -> Iterator[None]:
    """Turn any error of transformers into a one-line ValueError. subject: its first words."""
    try:
        yield
    except Exception as error:  # a broken folder can raise any exception
        reason = shorten(str(error) or repr(error), 200).split(". ")[0]
        raise ValueError(f"{subject} cannot be loaded: {reason}") from error
