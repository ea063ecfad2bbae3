"""What a run has found: kept in gpu.json, shown as one table, and whether a check has failed."""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.floors import with_shares
from benchmarks.gpu.parts import PARTS, Part

NAME = "gpu.json"
SAME = ("gpu", "driver", "torch")


class Summary:
    """Of the parts that are added; those of an earlier run in the same folder stay beside them.

    That is so where it was on the same card with the same PyTorch.
    """

    def __init__(
        self,
        out: Path,
        rehearsal: bool,
        minutes: float,
        absent: Mapping[str, Sequence[str]],
        problems: Sequence[str],
    ):
        self.out = out
        self.content: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "rehearsal": rehearsal,
            "minutes": minutes,
            "missing": {name: list(parts) for name, parts in absent.items()},
            "wheels_refused": list(problems),
            "parts": {},
        }
        for line in self._about_packages():
            print(line, flush=True)

    def _about_packages(self) -> Iterator[str]:
        for name, parts in self.content["missing"].items():
            yield f"missing: {name}; it costs {', '.join(parts) or 'no part'}"
        for problem in self.content["wheels_refused"]:
            yield f"not installed: {problem}"

    def without(self, part: Part, lacking: Sequence[str]) -> None:
        self.content["parts"][part.name] = _part(f"needs {', '.join(lacking)}", 0.0, lacking=True)
        self._tell(part)

    def add(self, part: Part, ended: str, seconds: float) -> None:
        """ended: "" for well, else how; what it has found is read from its file."""
        found = _part(ended, seconds)
        path = self.out / "parts" / f"{part.name}.jsonl"
        planned: dict[str, list[str]] = {"checks": [], "rows": []}
        for line in _whole_lines(path) if seconds else ():
            if "check" in line:
                found["checks"].append(line)
            elif "row" in line:
                found["rows"].append(line)
            else:
                planned.update(line)
        done = {line["check"] for line in found["checks"]} | {line["row"] for line in found["rows"]}
        found["not_checked"] = [name for name in planned["checks"] if name not in done]
        found["not_measured"] = [name for name in planned["rows"] if name not in done]
        self.content["parts"][part.name] = found
        self._tell(part)

    def _tell(self, part: Part) -> None:
        for line in _lines(part.name, self.content["parts"][part.name]):
            print(line, flush=True)

    def write(self, command: str) -> None:
        path = self.out / NAME
        self.content["command"] = command
        self.content["machine"], self.content["ceilings"] = {}, {"flops": {}}
        for row in self.content["parts"].get("ceilings", {}).get("rows", []):
            self.content["machine"].update(row.get("machine", {}))
            self.content["ceilings"]["flops"].update(row.get("flops", {}))
            if "bytes" in row:
                self.content["ceilings"]["bytes"] = row["bytes"]
        self._keep_earlier(path)
        for part in self.content["parts"].values():
            part["rows"] = [with_shares(row, self.content["ceilings"]) for row in part["rows"]]
        path.write_text(json.dumps(self.content, indent=1) + "\n")

    def _keep_earlier(self, path: Path) -> None:
        """The parts of an earlier run that this one had not."""
        earlier = json.loads(path.read_text()) if path.exists() else {"machine": {}, "parts": {}}
        parts = {**earlier["parts"], **self.content["parts"]}
        if all(earlier["machine"].get(k) == self.content["machine"].get(k) for k in SAME):
            self.content["parts"] = {p.name: parts[p.name] for p in PARTS if p.name in parts}

    def show(self) -> int:
        """Print the table; 1 where a check failed, was not come to, or a part broke off."""
        print()
        bad = 0
        for name, part in self.content["parts"].items():
            failed = sum(bool(line["error"]) for line in [*part["checks"], *part["rows"]])
            missed = len(part["not_checked"]) + len(part["not_measured"])
            broken = part["ended"] and not part["lacking"] and not _only_late(part)
            bad += bool(failed or part["not_checked"] or broken)
            print(
                f"{name:12} {part['seconds']:6.0f} s  {len(part['checks']):3} checks "
                f"{len(part['rows']):3} rows  {failed} failed  {missed} not done  {part['ended']}"
            )
        print(self.out / NAME)
        return int(bad > 0)


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    """What a part has written down; it may have been ended in the middle of a line."""
    for line in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def _part(ended: str, seconds: float, lacking: bool = False) -> dict[str, Any]:
    empty = {"checks": [], "rows": [], "not_checked": [], "not_measured": []}
    return {"ended": ended, "seconds": round(seconds, 1), "lacking": lacking, **empty}


def _only_late(part: Mapping[str, Any]) -> bool:
    """Whether a part has done all its checks and was cut while it measured."""
    return part["ended"].startswith("ended after") and not part["not_checked"] and part["rows"]


def _lines(name: str, part: Mapping[str, Any]) -> Iterator[str]:
    yield f"{name}: {part['ended'] or 'done'} in {part['seconds']:.0f} s"
    for line in part["checks"]:
        yield f"  {'FAILED' if line['error'] else 'ok':6} {line['check']}  {line['error']}"
        yield from (f"         {text}" for text in line["said"])
    for line in part["rows"]:
        yield f"  {'FAILED  ' if line['error'] else ''}{line['row']}  {line['error']}"
        yield from (f"    {text}" for text in _contenders(line))
    for what in ("not_checked", "not_measured"):
        yield from (f"  {what.replace('_', ' ')}: {text}" for text in part[what])


def _contenders(row: Mapping[str, Any]) -> Iterator[str]:
    for name, entry in row.get("contenders", {}).items():
        yield f"{name:28} {entry['median'] * 1000:10.2f} ms  {entry['ratio']:6.2f} times"
    for name, why in row.get("failed", {}).items():
        yield f"{name:28} FAILED: {why}"
