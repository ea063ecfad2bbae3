"""Parses and computes a sum of metrics, by which epochs are compared.

The configuration keys `select` and `monitor` have such a sum as value.
"""

import difflib
import math
import re
from collections.abc import Mapping
from typing import NamedTuple, Optional

from captioning.metrics.base import all_metrics


class MetricSum(NamedTuple):
    """A sum of metrics. text: the sum as the user wrote it. signs: {metric: its sign, +1 or -1}."""

    text: str
    signs: dict[str, int]

    @classmethod
    def parse(cls, text: str) -> "MetricSum":
        """Parse a text such as "CIDEr", "CIDEr + Bleu_4" or "-PPL".

        Raises a one-line ValueError.
        """
        metrics = all_metrics()
        # A hyphen in a name, as in PAC-S, is not a minus.
        names = "|".join(re.escape(name) for name in metrics if "-" in name)
        term_of = re.compile(rf"\s*([+-]?)\s*((?:{names})(?![^\s+-])|[^\s+-]+)\s*")
        terms = list(term_of.finditer(text))
        is_matched = text and "".join(term[0] for term in terms) == text
        if not is_matched or not all(term[1] for term in terms[1:]):
            raise ValueError("write it as METRIC, -METRIC or METRIC + METRIC")
        signs = {}
        for sign, name in (term.groups() for term in terms):
            if name not in metrics:
                known = {each.title.lower(): key for key, each in metrics.items()}
                known |= {key.lower(): key for key in metrics}
                near = difflib.get_close_matches(name.lower(), known, n=1)
                hint = (
                    f"did you mean {known[near[0]]}?" if near else f"there are {', '.join(metrics)}"
                )
                raise ValueError(f"{name!r} is no metric; {hint}")
            if name in signs:
                raise ValueError(f"{name} occurs twice")
            signs[name] = -1 if sign == "-" else 1
        return cls(text, signs)

    def compute(self, scores: Mapping[str, float]) -> Optional[float]:
        """Return the sum; higher is better. None if a metric is missing or not finite."""
        values = [sign * scores.get(name, math.nan) for name, sign in self.signs.items()]
        return sum(values) if all(map(math.isfinite, values)) else None
