"""YAML read into plain values: what is no YAML is one line, and nothing in it is run."""

from typing import Any

from ruamel.yaml import YAML, YAMLError

from captioning.errors import UserError

MOST_VALUES = 10_000  # a configuration has some hundred; aliases of aliases can stand for billions


def parse_yaml(text: str, where: str) -> Any:
    """Return the value of a YAML 1.2 text: mappings, lists, text, numbers, dates.

    A tag that names a type or a function of Python is refused, as is every tag that YAML itself
    does not define. Raises UserError, which begins with `where`.
    """
    try:
        value = YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f" at line {mark.line + 1}"
        told = [getattr(error, part, None) for part in ("context", "problem")]
        problem = ", ".join(part for part in told if part) or str(error)
        raise UserError(f"{where}: not valid YAML{line}: {' '.join(problem.split())}") from error
    except RecursionError:
        raise UserError(f"{where}: not valid YAML: it is nested too deeply") from None
    except Exception as error:  # the values themselves: a date of month 13, "!!int" without one
        raise UserError(f"{where}: not valid YAML: {error}") from error
    _check_size(value, where)
    return value


def _check_size(value: Any, where: str) -> None:
    waiting, count = [value], 0
    while waiting:
        count += 1
        if count > MOST_VALUES:
            raise UserError(
                f"{where}: more than {MOST_VALUES} values, aliases followed: this is no "
                "configuration"
            )
        part = waiting.pop()
        if isinstance(part, dict):
            waiting.extend(part.values())
        elif isinstance(part, (list, tuple, set)):
            waiting.extend(part)
