"""A sum of metrics by which epochs are compared, as `select` and `monitor` name it."""

import difflib
import math
import re
from collections.abc import Mapping
from typing import NamedTuple, Optional

from captioning.metrics.registry import METRICS, metric_of


class MetricSum(NamedTuple):
    """text: as it was given; signs: +1 or, where less is better, -1, by the metric's name."""

    text: str
    signs: dict[str, int]

    @classmethod
    def parse(cls, text: str) -> "MetricSum":
        """From `CIDEr`, `CIDEr + Bleu_4` or `-PPL`. Raises ValueError, one line."""
        # A name may have a hyphen within, as PAC-S does.
        names = "|".join(re.escape(name) for name in METRICS if "-" in name)
        term_of = re.compile(rf"\s*([+-]?)\s*((?:{names})(?![^\s+-])|[^\s+-]+)\s*")
        signs, place = {}, 0
        while place < len(text) or not signs:
            term = term_of.match(text, place)
            if term is None or (signs and not term[1]):
                raise ValueError("write it as METRIC, -METRIC or METRIC + METRIC")
            sign, name = term.groups()
            if name not in METRICS:
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
    """The metric that may be meant, by its name or its title."""
    known = {metric_of(each).title.lower(): each for each in METRICS}
    known |= {each.lower(): each for each in METRICS}
    near = difflib.get_close_matches(name.lower(), known, n=1)
    return f"; did you mean {known[near[0]]}?" if near else f"; there are {', '.join(METRICS)}"
