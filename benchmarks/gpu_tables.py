"""Write a GPU's results into docs/benchmarks.md, between its two marks.

    python -m benchmarks.gpu_tables output/gpu/gpu.json

The file is kept beside the page, as docs/gpu.json, so that a test can compare the two.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from benchmarks.gpu.part import CHECK
from benchmarks.topic import aligned

DOCS = Path(__file__).resolve().parent.parent / "docs"
BEGIN, END = "<!-- from gpu.json -->\n", "<!-- to here -->\n"
UNMEASURED = """\
**No GPU has been measured.** Nothing has run on one: kernels, autocast, float16 with its scaler,
compiled steps and CUDA graphs, NCCL, prefetching out of pinned memory, the sizes of slices.
"""


def tables(content: Mapping[str, Any]) -> str:
    """The page's text of a gpu.json: the card, checks, a table of each part, what is missing."""
    parts = content["parts"]
    machine = parts["ceilings"]["machine"]
    blocks = [", ".join(f"{key} {value}" for key, value in machine.items()) + ".\n"]
    checks = [f"{name}: {line}" for name, part in parts.items() for line in _checks(part)]
    blocks += [_block(checks)] if checks else []
    for name, part in parts.items():
        rows = [row for row in part["rows"] if "contenders" in row]
        if rows:
            contenders = list(dict.fromkeys(who for row in rows for who in row["contenders"]))
            table = [[name, *contenders]]
            table += [[row["name"], *(_cell(row, who) for who in contenders)] for row in rows]
            blocks.append(_block(aligned(table)))
    return "\n".join([*blocks, f"Not measured: {'; '.join(_missing(parts)) or 'nothing'}.\n"])


def _checks(part: Mapping[str, Any]) -> list[str]:
    lines = []
    for row in part["rows"]:
        if row["name"].startswith(CHECK):
            lines.append(f"{'FAILED' if 'error' in row else 'ok'}, {row['name'][len(CHECK) :]}")
            lines += [f"    {note}" for note in row.get("notes", [row.get("error")])]
    return lines


def _cell(row: Mapping[str, Any], who: str) -> str:
    """As "640.0 captions (5.00, 2.50-10.00; 12 MB)": a second or ms, times the peer, memory."""
    if who not in row["contenders"]:
        return ""
    entry = row["contenders"][who]
    rate = f"{entry['rate']:.1f} {row['item']}" if "rate" in entry else ""
    low, high = entry["spread"]
    memory = f"; {entry['peak_bytes'] / 2**20:.0f} MB" if "peak_bytes" in entry else ""
    times = "peer" if who == row["peer"] else f"{entry['ratio']:.2f}, {low:.2f}-{high:.2f}"
    return f"{rate or format(entry['median'] * 1000, '.2f') + ' ms'} ({times}{memory})"


def _missing(parts: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, part in parts.items():
        lines += [f"{name} {part['ended']}"] if part["ended"] else []
        lines += [f"{name}, {row}" for row in part["planned"][len(part["rows"]) :]]
        for row in part["rows"]:
            failed = {"": row["error"]} if "error" in row else row.get("failed", {})
            lines += [
                f"{name}, {row['name']}{f': {who}' if who else ''} ({why})"
                for who, why in failed.items()
            ]
    return lines


def _block(lines: Sequence[str]) -> str:
    return "\n".join(["```", *lines, "```", ""])


def between(page: str) -> str:
    """The text between the marks of a page."""
    return page.partition(BEGIN)[2].partition(END)[0]


def with_tables(page: str, text: str) -> str:
    """The page with `text` between its marks. Raises ValueError where one is missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks a mark, {BEGIN.strip()} or {END.strip()}")
    return f"{before}{begin}{text}{end}{after}"


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_tables", description=__doc__)
    parser.add_argument("file", type=Path, help="gpu.json, as scripts/gpu.sh writes it")
    parser.add_argument("--docs", type=Path, default=DOCS, help="the folder of benchmarks.md")
    arguments = parser.parse_args(argv)
    content = json.loads(arguments.file.read_text())
    if content["rehearsal"]:
        print(f"{arguments.file} is of a rehearsal, which measures nothing", file=sys.stderr)
        return 2
    page = arguments.docs / "benchmarks.md"
    page.write_text(with_tables(page.read_text(), tables(content)))
    (arguments.docs / "gpu.json").write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
