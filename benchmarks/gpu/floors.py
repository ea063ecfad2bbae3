"""How fast a card could be at best, and what share of that was reached.

A phase is work of which nothing is done twice: {"flops": {precision: number}, "bytes": number,
"times": how often}. It takes no less than its FLOPs at the rate of a large matrix product, and no
less than its bytes, each read or written once, at that of a copy.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Optional


def floor_seconds(
    phases: Sequence[Mapping[str, Any]], ceilings: Mapping[str, Any]
) -> Optional[float]:
    """Seconds that the phases need one after the other; None where a ceiling is unknown."""
    total = 0.0
    for phase in phases:
        if not ceilings.get("bytes") or not set(phase["flops"]) <= set(ceilings["flops"]):
            return None
        arithmetic = sum(n / ceilings["flops"][name] for name, n in phase["flops"].items())
        total += phase.get("times", 1) * max(arithmetic, phase["bytes"] / ceilings["bytes"])
    return total


def with_shares(row: Mapping[str, Any], ceilings: Mapping[str, Any]) -> dict[str, Any]:
    """The row, and of each contender the share of what the card can do, where `phases` say so.

    phases: by contender.
    """
    for name, phases in row.get("phases", {}).items():
        floor = floor_seconds(phases, ceilings)
        if floor is not None and name in row["contenders"]:
            entry = row["contenders"][name]
            entry["floor"], entry["share"] = floor, floor / entry["median"]
    return dict(row)
