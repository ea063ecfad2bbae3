"""Adds the command-line flags of programs that score captions: metrics, options and device."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Optional, get_args, get_origin

from captioning.metrics.options import option_classes
from captioning.metrics.registry import DEFAULT_EVALUATORS, EVALUATORS
from captioning.runtime.progress import log_line


def add_scoring_flags(parser: argparse.ArgumentParser, images_help: str) -> None:
    """Add the flags to a parser. images_help: the help text of --images."""
    add = parser.add_argument
    add(
        "--metrics",
        nargs="+",
        default=DEFAULT_EVALUATORS,
        choices=EVALUATORS,
        metavar="NAME",
        help=f"of {', '.join(EVALUATORS)} (default: {' '.join(DEFAULT_EVALUATORS)})",
    )
    add("--images", type=Path, help=images_help)
    add("--cache_dir", type=Path, help="where metrics keep features and downloads")
    add("--device", default="auto", help="device of models: auto, cpu, cuda, cuda:1")
    add("--batch_size", type=int, default=64, help="batch size of models")
    for name, field in _option_fields(EVALUATORS).items():
        parsing = _parsing_of(field.annotation, field.default)
        add(f"--{name}", default=field.default, help=field.description, **parsing)


def parse_scoring_arguments(
    parser: argparse.ArgumentParser, argv: Optional[Sequence[str]]
) -> argparse.Namespace:
    """Return the parsed arguments."""
    arguments = parser.parse_args(argv)
    if arguments.batch_size < 1:
        parser.error("--batch_size has to be 1 or more")
    return arguments


def local_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return {option: value} of the chosen evaluators, see `Options.local_values`."""
    classes = option_classes(EVALUATORS[evaluator] for evaluator in arguments.metrics)
    return {k: v for options in classes for k, v in options.local_values(arguments).items()}


def warn_of_unused_options(
    arguments: argparse.Namespace, used_by_program: Sequence[str] = ()
) -> None:
    """Log a warning for each option that has a value although no chosen evaluator uses it.

    used_by_program: options without this warning, because the program itself uses them. Call it
    after `distributed.start`, so that only rank 0 logs.
    """
    used = {*used_by_program, *_option_fields(arguments.metrics)}
    for name, field in _option_fields(EVALUATORS).items():
        if name not in used and getattr(arguments, name) != field.default:
            users = [evaluator for evaluator in EVALUATORS if name in _option_fields([evaluator])]
            log_line(f"warning: --{name} has no effect without --metrics {' or '.join(users)}")


def _option_fields(evaluators: Iterable[str]) -> dict[str, Any]:
    """Return {option: pydantic field} of the named evaluators."""
    classes = option_classes(EVALUATORS[evaluator] for evaluator in evaluators)
    return {name: field for options in classes for name, field in options.model_fields.items()}


def _parsing_of(annotation: Any, default: Any) -> dict[str, Any]:
    """Return keyword arguments of `add_argument` for an option of this type."""
    if default is False:
        return {"action": "store_true"}
    if get_origin(annotation) is Literal:
        return {"choices": get_args(annotation)}
    if list[str] in (annotation, *get_args(annotation)):
        return {"nargs": "+"}
    return {"type": str if default is None else type(default)}
