"""Builds a captioner from a checkpoint alone, for the programs that export it."""

import argparse
import json
import sys
from typing import Any, Callable, Union

from adapters import CONFIG
from adapters.lora import Lora, add_lora, merge_adapter
from BLIP.blip import BlipCaptioner
from BLIP.checkpoint import (
    TIED,
    base_weights,
    load_weights,
    read_checkpoint,
    settings_in,
)
from BLIP.download import without_secrets


def captioner_of(
    checkpoint: str, trust_checkpoint: bool = False, **overrides: Any
) -> BlipCaptioner:
    """Build the captioner of a checkpoint, in evaluation mode.

    LoRA is merged into the weights. overrides: arguments of `BlipCaptioner`, see `settings_in`.
    Raises ValueError for a checkpoint that cannot be read or does not fit.
    """
    content = read_checkpoint(checkpoint, trust_checkpoint)
    name = without_secrets(checkpoint)
    state, source = base_weights(content, name, trust_checkpoint)
    captioner = BlipCaptioner(**settings_in(content, state, name, **overrides))
    load_weights(captioner, state, source)
    if CONFIG in content:
        add_lora(captioner, Lora(**content["config"]["lora"]), source, TIED)
        load_weights(captioner, content["model"], name)
        merge_adapter(captioner)
    return captioner.eval()


def add_captioner_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `captioner_of` to the parser of a program."""
    parser.add_argument("checkpoint", help="path, URL or hf:// name")
    parser.add_argument("--tokenizer", help="hub name, folder with a vocabulary, or vocab.txt")
    parser.add_argument("--vit", type=_name_or_mapping, help="base, large, or sizes as JSON")
    parser.add_argument("--med_config", type=_name_or_mapping, help="a file, or sizes as JSON")
    parser.add_argument("--trust_checkpoint", action="store_true")


def run_program(program: Callable[[], str]) -> int:
    """Run a program and print its result. Return the exit code: 0, or 2 after a one-line error."""
    try:
        print(program())
    except (ValueError, OSError, ImportError) as error:
        line = " ".join(str(error).split())
        # The message may have text of a checkpoint. Control characters are escaped, so that the
        # terminal does not execute them.
        line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
        print(f"error: {line}", file=sys.stderr)
        return 2
    return 0


def _name_or_mapping(text: str) -> Union[str, dict]:
    return json.loads(text) if text.startswith("{") else text
