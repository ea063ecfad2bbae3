"""Adds the command-line flags of programs that score captions: metrics, options and device."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from captioning.metrics.options import option_classes
from captioning.metrics.registry import DEFAULT_METRICS, EVALUATORS


def add_metrics(parser: argparse.ArgumentParser, images: str) -> None:
    """Add the flags to a parser. images: the help text of --images."""
    add = parser.add_argument
    names = f"of {', '.join(EVALUATORS)} (default: {' '.join(DEFAULT_METRICS)})"
    shape: dict[str, Any] = {"nargs": "+", "choices": EVALUATORS, "metavar": "NAME"}
    add("--metrics", default=DEFAULT_METRICS, help=names, **shape)
    add("--images", type=Path, help=images)
    add("--cache_dir", type=Path, help="where metrics keep features and downloads")
    add("--device", default="auto", help="device of models: auto, cpu, cuda, cuda:1")
    add("--batch_size", type=int, default=64, help="batch size of models")
    for name, field in _fields().items():
        default = field.default
        if default is False:
            add(f"--{name}", action="store_true", help=field.description)
        else:
            settings = _argparse_settings(field.annotation, default)
            add(f"--{name}", default=default, help=field.description, **settings)


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Return the parsed arguments. The attribute `options` is {option: value} of all evaluators."""
    arguments = parser.parse_args(argv)
    if arguments.batch_size < 1:
        parser.error("--batch_size has to be 1 or more")
    arguments.options = {name: getattr(arguments, name) for name in _fields()}
    return arguments


def _fields() -> dict[str, Any]:
    """Return {option: pydantic field} of all evaluators."""
    classes = option_classes(EVALUATORS.values())
    return {name: field for options in classes for name, field in options.model_fields.items()}


def _argparse_settings(annotation: Any, default: Any) -> dict[str, Any]:
    """Return keyword arguments of `add_argument` for an option of this type."""
    if get_origin(annotation) is Literal:
        return {"choices": get_args(annotation)}
    if list[str] in (annotation, *get_args(annotation)):
        return {"nargs": "+"}
    return {"type": str if default is None else type(default)}
