"""Validates, with pydantic, the sizes of a model that a configuration may set."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError


class Sizes(BaseModel):
    """The base class of `MedConfig` and `VitSizes`. Refuses unknown keys, NaN and wrong types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @classmethod
    def read(cls, key: str, values: Mapping[str, Any]) -> "Sizes":
        """Build sizes from a mapping. Raises a one-line ValueError.

        key: the configuration key that has the mapping, for the message.
        """
        for name in values.keys() - cls.model_fields.keys():
            known = ", ".join(cls.model_fields)
            raise ValueError(f"{key}: unknown key {name!r}; known keys are {known}")
        try:
            return cls(**values)
        except ValidationError as error:
            detail = error.errors()[0]
            where = ".".join(map(str, (key, *detail["loc"])))
            message = detail["msg"].removeprefix("Value error, ")
            found = f"found {detail['input']!r}; " if detail["loc"] else ""
            raise ValueError(f"{where}: {found}{message}") from error
