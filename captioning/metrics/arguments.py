"""Adds the command-line flags of programs that score captions: metrics, options and device."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, get_args, get_origin

from captioning.metrics import DEFAULT_EVALUATORS, EVALUATORS
from captioning.metrics.base import evaluator_classes, options_of
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
    for name, (kind, field) in _options(EVALUATORS).items():
        kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        parsing = _parsing_of(kind, field.default)
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
    """Return {option: value} of the chosen evaluators."""
    return {name: getattr(arguments, name) for name in _options(arguments.metrics)}


def warn_of_unused_options(
    arguments: argparse.Namespace, used_by_program: Sequence[str] = ()
) -> None:
    """Log a warning for each option that has a value although no chosen evaluator uses it.

    used_by_program: options without this warning, because the program itself uses them. Call it
    after `distributed.start`, so that only rank 0 logs.
    """
    used = {*used_by_program, *_options(arguments.metrics)}
    for name, (_, field) in _options(EVALUATORS).items():
        if name not in used and getattr(arguments, name) != field.default:
            users = [evaluator for evaluator in EVALUATORS if name in _options([evaluator])]
            log_line(f"warning: --{name} has no effect without --metrics {' or '.join(users)}")


def _options(evaluators: Iterable[str]) -> dict[str, tuple[Any, Any]]:
    """Return {name: option} of the named evaluators."""
    return options_of(evaluator_classes(evaluators).values())


def _parsing_of(annotation: Any, default: Any) -> dict[str, Any]:
    """Return keyword arguments of `add_argument` for an option of this type."""
    if default is False:
        return {"action": "store_true"}
    if get_origin(annotation) is Literal:
        return {"choices": get_args(annotation)}
    if list[str] in (annotation, *get_args(annotation)):
        return {"nargs": "+"}
    return {"type": str if default is None else type(default)}
