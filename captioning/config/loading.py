"""Reads and writes configuration files: flat YAML with BLIP's key names.

All errors in a file are reported in one line.
"""

import difflib
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Optional, Union, get_args, get_origin

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.events import AliasEvent

from captioning.config.config import GONE, Config, parse_config
from captioning.files.reading import read_text
from captioning.files.writing import write_text
from captioning.runtime.errors import UserError, one_line

MAX_ALIASES = 20  # in a YAML text: nested aliases of a small text can expand to billions of values


def load_config(
    path: Union[str, Path], overrides: Sequence[str] = (), flags: Optional[dict[str, Any]] = None
) -> Config:
    """Read a configuration from a YAML file, and apply overrides and flags.

    - path: the YAML file; output_dir defaults to output/NAME for NAME.yaml
    - overrides: see `parse_overrides`; "vit.depth=2" sets a value in a mapping
    - flags: {key: parsed value}, which replace the file's values

    Raises UserError with one line that names each wrong key, its value and the allowed values. The
    line begins with the file, or with "command line" if overrides and flags have set all wrong
    keys.
    """
    values = parse_yaml(read_text(path), str(path))
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected lines of 'key: value', found {_shorten(values)}")
    changed = {*(flags or ())}
    for key, value in parse_overrides(overrides).items():
        _set_value(values, key, value)
        changed.add(key.partition(".")[0])
    values.update(flags or {})
    values.setdefault("output_dir", f"output/{Path(path).stem}")
    try:
        return parse_config(values)
    except ValidationError as error:
        wrong_keys = {detail["loc"][0] if detail["loc"] else None for detail in error.errors()}
        source = "command line" if wrong_keys <= changed else path
        raise UserError(f"{source}: {explained(error, values)}") from error


def parse_yaml(text: str, where: str) -> Any:
    """Return the value of a YAML 1.2 text: mappings, lists, text, numbers, dates.

    Only the tags of YAML itself are allowed, so that no tag can name a Python type or function.
    Raises UserError, whose text begins with `where`.
    """
    try:
        events = YAML(typ="safe", pure=True).parse(text)
        if sum(isinstance(event, AliasEvent) for event in events) > MAX_ALIASES:
            raise ValueError(f"more than {MAX_ALIASES} aliases")
        return YAML(typ="safe", pure=True).load(text)
    except Exception as error:  # also a RecursionError, or an impossible value: a 13th month
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f" at line {mark.line + 1}"
        parts = (getattr(error, part, None) for part in ("context", "problem"))
        problem = ", ".join(filter(None, parts)) or str(error)
        raise UserError(f"{where}: not valid YAML{line}: {one_line(problem, None)}") from error


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Return {key: value} of arguments of the form key=value. Raises UserError.

    Values are YAML, but text is taken as it is, with blanks at its end, colons and hashes, unless
    it is in quotes. "pretrained=" empties a key.
    """
    values = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise UserError(f"override {override!r} is not of the form key=value")
        values[key] = _parse_value(key, text, f"override {override!r}")
    return values


def _parse_value(key: str, text: str, where: str) -> Any:
    field = Config.model_fields.get(key)
    types = _types(field.annotation) if field else ()
    if str not in types:
        return parse_yaml(text, where)
    # A text such as "- a", "a: b" or "# a" is YAML of another type only by accident.
    is_quoted = text[:1] in ("'", '"') and text[-1] == text[0]
    if not (is_quoted or text in ("", "null") or text[0] in "[{"):
        return text
    try:
        value = parse_yaml(text, where)
    except UserError:
        return text
    return value if type(value) in types else text


def _types(annotation: Any) -> set[Any]:
    """Return the types of a union, without their parameters."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _types(parts[0])
    return set().union(*map(_types, parts)) if origin is Union else {origin or annotation}


def write_config(config: Config, path: Path) -> None:
    """Write the configuration as YAML that `load_config` can read."""
    buffer = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    yaml.dump(config.model_dump(), buffer)
    write_text(buffer.getvalue(), path)


def _set_value(values: dict, key: str, value: Any) -> None:
    *outer, last = key.split(".")
    for name in outer:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise UserError(f"override {key}: {name} is {_shorten(values)}, which holds no keys")
    values[last] = value


_DICTIONARY = re.compile("a valid dictionary( or instance of \\w+)?")


def explained(error: ValidationError, values: dict) -> str:
    """Return all errors of a validation as one line.

    If a key accepts several types, its error names all of them, joined by "or". values: the
    configuration before validation.
    """
    groups = {}
    details = [d for d in error.errors() if not _is_other_alternative(d)] or error.errors()
    for detail in details:
        prefix, should, kind = _describe_error(detail, values).partition("; input should be ")
        groups.setdefault(prefix + should, []).append(kind)
    return "; ".join(prefix + " or ".join(dict.fromkeys(kinds)) for prefix, kinds in groups.items())


def _describe_error(detail: dict, values: dict) -> str:
    """Describe one of pydantic's errors in terms of the file's keys and values."""
    if not detail["loc"]:  # the error concerns several keys, which the message names
        return detail["msg"].removeprefix("Value error, ")
    key = str(detail["loc"][0])
    value = values.get(key)
    keys = [str(name) for name in value] if isinstance(value, dict) else []
    inner = [str(part) for part in detail["loc"][1:] if str(part) in keys]
    where = ".".join([key, *inner])
    if detail["type"] == "extra_forbidden":
        for commit, gone in GONE.items():
            if key in gone:
                return f"{key} is {_shorten(value)}, which commit {commit} was the last to support"
        names = [] if inner else [*Config.model_fields]
        close = difflib.get_close_matches(key, names, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return f"unknown key {where!r}{hint}"
    if detail["type"] == "missing":
        return f"{'.'.join(dict.fromkeys([key, str(detail['loc'][-1])]))} is missing"
    message = detail["msg"].removeprefix("Value error, ")
    message = _DICTIONARY.sub("a mapping", message[0].lower() + message[1:])
    return f"{where}: found {_shorten(detail['input'])}; {message}"


def _is_other_alternative(detail: dict) -> bool:
    """Return whether an error is about a type of a union that the value does not have.

    pydantic reports an error for each type of a union. Only the errors about the type that the
    value has are useful to the user.
    """
    if isinstance(detail["input"], dict):
        return detail["type"] in ("literal_error", "string_type")
    return isinstance(detail["input"], str) and detail["type"] in ("dict_type", "model_type")


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
