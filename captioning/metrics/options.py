"""Defines the options of evaluators and rewards.

An option is a configuration key. An evaluator's option is also a flag of the programs that score
captions, see `arguments`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from captioning.files.cache import local_path_in
from captioning.runtime.errors import UserError
from captioning.runtime.registry import load

# Marks an option that names one or several files. Names in a configuration are relative to
# ann_root.
FILE = "file"


class Options(BaseModel):
    """The options of an evaluator or a reward.

    A subclass declares each option as `name: Annotated[type, role] = Field(default,
    description=...)`. role: "scoring", see `captioning/config/keys.py`. description: one clause for
    --help and errors. An option that names files has FILE after the role.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @classmethod
    def checked(cls, values: Mapping[str, Any]) -> "Options":
        """Return the options from {name: value}. Raises UserError for an impossible value."""
        try:
            return cls(**values)
        except ValidationError as error:
            first = error.errors()[0]
            name, message = first["loc"][0], first["msg"]
            message = message[0].lower() + message[1:]
            raise UserError(f"{name}: found {first['input']!r}; {message}") from None

    @classmethod
    def from_config(cls, config: Any) -> dict[str, Any]:
        """Return `local_values` of a configuration, whose file names are relative to ann_root."""
        return cls.local_values(config, config.ann_root)

    @classmethod
    def local_values(cls, source: Any, folder: str = "") -> dict[str, Any]:
        """Return {option: value} from the attributes of `source`, with defaults for missing ones.

        The name of a file, relative to `folder`, becomes a local path. A file in an object store is
        copied to the cache. An empty name of a file is as good as none.
        """
        values = {}
        for name, field in cls.model_fields.items():
            value = getattr(source, name, field.default)
            if FILE in field.metadata and value is not None:
                names = [value] if isinstance(value, str) else value
                paths = [str(local_path_in(folder, each)) for each in names if each]
                value = paths if isinstance(value, list) else next(iter(paths), None)
            values[name] = value
        return values


def option_classes(entries: Iterable[str]) -> list[type[Options]]:
    """Return the distinct `Options` classes of evaluators or rewards.

    entries: "module:class" of each. A class is left out if it is the base class of another one,
    because the subclass has the same options and more.
    """
    every = dict.fromkeys(load(entry).Options for entry in entries)
    return [
        options
        for options in every
        if not any(options is not other and issubclass(other, options) for other in every)
    ]
