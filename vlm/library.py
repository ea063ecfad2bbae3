"""Models and processors of transformers by name, with one line for whatever they lack."""

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

OLDEST = 5  # the first number of transformers' versions
COMPUTED = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PACKS = "support_avx512bf16_for_cpu"  # of a layer of bitsandbytes
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


def model_of(name: str, weights: bool, four_bit: Optional[str] = None) -> nn.Module:
    """The model in float32, in evaluation mode; without `weights` they are made up.

    four_bit: the precision in which its linear layers compute, their weights being in four bits.
    Raises ValueError.
    """
    import transformers

    if four_bit is not None and find_spec("bitsandbytes") is None:
        raise ValueError("lora.load_in_4bit needs bitsandbytes: pip install bitsandbytes")

    transformers.utils.logging.disable_progress_bar()
    config, source = parts_of(name).config, _source(name)
    kind = transformers.AutoModelForImageTextToText
    with _one_line(name):
        if weights:
            how = {"dtype": torch.float32, "trust_remote_code": False, "output_loading_info": True}
            if four_bit is not None:
                how["quantization_config"] = transformers.BitsAndBytesConfig(
                    load_in_4bit=True,
                    bnb_4bit_quant_type="nf4",
                    bnb_4bit_use_double_quant=True,
                    bnb_4bit_compute_dtype=COMPUTED[four_bit],
                )
            model, told = kind.from_pretrained(source, **how)
            lacking = sorted(told["missing_keys"])
            if lacking:
                raise ValueError(f"{len(lacking)} weights are missing, such as {lacking[0]}")
            _keep_as_they_are(model)
            return model
        model = kind.from_config(config, dtype=torch.float32).eval()
    with suppress(OSError):  # it has none: the one made of the configuration stays
        model.generation_config = transformers.GenerationConfig.from_pretrained(source)
    return model


def _keep_as_they_are(model: nn.Module) -> None:
    """Some CPUs would have weights of four bits packed anew to evaluate, which takes sizes of its
    own and cannot be undone to learn on."""
    for module in model.modules():
        if hasattr(module, PACKS):
            setattr(module, PACKS, False)


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
        reason = one_line(error).split(". ")[0]
        if ITS_OWN_CODE in str(error):
            reason = "it brings code of its own, which is not run here"
        raise ValueError(f"vlm is {name}, which cannot be loaded: {reason}") from error


def one_line(error: Exception, most: Optional[int] = 200) -> str:
    """What an error says on one line, cut to `most` characters; else its type."""
    return " ".join(str(error).split())[:most] or type(error).__name__


def exit_code(program: Callable[[], str]) -> int:
    """Run a program and print what it returns; 0, or 2 after one line of what is to be mended."""
    try:
        print(program())
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {one_line(error, None)}", file=sys.stderr)
        return 2
    return 0
