"""Checks the options of evaluators and rewards, and finds the files that options name."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Optional

from pydantic import ConfigDict, ValidationError, create_model

from captioning.files.cache import local
from captioning.files.stores import join
from captioning.runtime.errors import UserError


def options_of(kinds: Iterable[Any]) -> dict[str, tuple[Any, Any]]:
    """Return {name: `option`} of evaluators' or rewards' classes."""
    return {name: each for kind in kinds for name, each in kind.options.items()}


def checked_options(kinds: Iterable[Any], **values: Any) -> Any:
    """Return an object with the options of evaluators or rewards as attributes.

    values: {option: value}; others get their defaults. Raises UserError for an impossible value.
    """
    strict = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
    try:
        return create_model("Options", __config__=strict, **options_of(kinds))(**values)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{first['loc'][0]}: found {first['input']!r}. {first['msg']}") from None


def missing_options(kind: Any, config: Any) -> Optional[str]:
    """Return "needs NAME: MEANING" for missing required options; None if none is missing.

    kind: the class of an evaluator or a reward. A required option is missing if it is empty
    or has its default.
    """
    fields = {name: kind.options[name][1] for name in kind.required}
    missing = {
        name: field.description
        for name, field in fields.items()
        if getattr(config, name) in (field.default, "", [])
    }
    meanings = " and ".join(missing.values())
    return f"needs {' and '.join(missing)}: {meanings}" if missing else None


def option_files(config: Any, key: str) -> list[Path]:
    """Return the local files that an option names; none if it is None or empty.

    Names are relative to the folder `ann_root`, if `config` has one. A file in an object store is
    copied to the cache.
    """
    names = getattr(config, key, None) or []
    folder = getattr(config, "ann_root", "")
    names = [names] if isinstance(names, str) else names
    return [local(join(folder, name)) for name in names if name]
