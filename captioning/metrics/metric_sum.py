"""A sum of metrics by which epochs are compared, as `select` and `monitor` name it."""

import difflib
import math
import re
from collections.abc import Mapping
from typing import NamedTuple, Optional

from captioning.metrics.score_table import COLUMNS

# A name may have a hyphen within: PAC-S.
_NAMES = "|".join(re.escape(name) for name in COLUMNS if "-" in name)
_TERM = re.compile(rf"\s*([+-]?)\s*((?:{_NAMES})(?![^\s+-])|[^\s+-]+)\s*")


class MetricSum(NamedTuple):
    """text: as it was given; signs: +1 or, where less is better, -1, by the metric's name."""

    text: str
    signs: dict[str, int]

    @classmethod
    def parse(cls, text: str) -> "MetricSum":
        """Of `CIDEr`, `CIDEr + Bleu_4` or `-PPL`. Raises ValueError, one line."""
        signs, place = {}, 0
        while place < len(text) or not signs:
            term = _TERM.match(text, place)
            if term is None or (signs and not term[1]):
                raise ValueError("write it as METRIC, -METRIC or METRIC + METRIC")
            sign, name = term.groups()
            if name not in COLUMNS:
                raise ValueError(f"{name!r} is no metric{_hint(name)}")
            if name in signs:
                raise ValueError(f"{name} is in it twice")
            signs[name], place = -1 if sign == "-" else 1, term.end()
        return cls(text, signs)

    def of(self, scores: Mapping[str, float]) -> Optional[float]:
        """The higher, the better; None where one of the metrics is missing or not finite."""
        values = [sign * scores.get(name, math.nan) for name, sign in self.signs.items()]
        return sum(values) if all(map(math.isfinite, values)) else None


def _hint(name: str) -> str:
    """The metric that may have been meant, by its name or by its title in tables."""
    known = {each.lower(): each for each in COLUMNS}
    known |= {column.title.lower(): each for each, column in COLUMNS.items()}
    near = difflib.get_close_matches(name.lower(), known, n=1)
    return f"; did you mean {known[near[0]]}?" if near else f"; there are {', '.join(COLUMNS)}"
