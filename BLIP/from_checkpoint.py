"""Builds a captioner from a checkpoint alone, for the programs that export it."""

import argparse
import json
import sys
from typing import Any, Callable, Union

from BLIP.adapter import merge_adapter, read_base
from BLIP.blip import BlipCaptioner
from BLIP.checkpoint import ADAPTER, load_weights, read_checkpoint, run_config, settings_in
from BLIP.download import without_secrets
from BLIP.skip_init import SkipInit


def captioner_of(
    checkpoint: str, trust_checkpoint: bool = False, **overrides: Any
) -> BlipCaptioner:
    """Build the captioner of a checkpoint, in evaluation mode.

    LoRA is merged into the weights. overrides: arguments of `BlipCaptioner`, see `settings_in`.
    Raises ValueError for a checkpoint that cannot be read or does not fit.
    """
    content = read_checkpoint(checkpoint, trust_checkpoint)
    name = without_secrets(checkpoint)
    base, base_name = read_base(content, name, trust_checkpoint)
    configured = content if run_config(content) else base
    settings = settings_in(configured, base["model"], base_name, **overrides)
    with SkipInit():
        captioner = BlipCaptioner(**settings)
    load_weights(captioner, base["model"], base_name)
    if ADAPTER in content:
        merge_adapter(captioner, content, name)
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
