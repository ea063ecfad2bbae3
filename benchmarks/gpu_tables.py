"""Write what a GPU has given into docs/benchmarks.md, between its two marks.

    python -m benchmarks.gpu_tables output/gpu/gpu.json

The file is kept beside the page, as docs/gpu.json, so that a test can say that they agree.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

DOCS = Path(__file__).resolve().parent.parent / "docs"
BEGIN, END = "<!-- from gpu.json -->\n", "<!-- to here -->\n"
UNMEASURED = """\
**No GPU has been measured.** Nothing has run on one: kernels, autocast, float16 with its scaler,
compiled steps and CUDA graphs, NCCL, prefetching out of pinned memory, the sizes of slices.
"""
Row = Mapping[str, Any]
Cell = Callable[[Row], str]


def tables(content: Mapping[str, Any]) -> str:
    """The page's text of a gpu.json: the card, a table for each part, and what is not measured."""
    blocks = [_card(content), _block(list(_checks(content)))]
    for name, title, columns in TABLES:
        rows = [row for row in _rows(content, name) if "contenders" in row]
        rows = [row for row in rows if not row.get("for_tuning")]
        with_more = {row["row"] for row in rows}
        rows = [row for row in rows if f"{row['row']}, compiled" not in with_more]
        if rows:
            lines = [[title, *(header for header, _ in columns)]]
            lines += [[row["row"], *(cell(row) for _, cell in columns)] for row in rows]
            blocks.append(_block(_aligned(lines)))
    needed = _needed(content)
    if needed:
        blocks.append(needed)
    return "\n".join([*blocks, _unmeasured(content)])


def _card(content: Mapping[str, Any]) -> str:
    of, ceilings = content["machine"], content["ceilings"]
    products = ", ".join(f"{n} {rate / 1e12:.0f}" for n, rate in ceilings["flops"].items())
    return (
        f"{of.get('gpu')}, driver {of.get('driver')}, {of.get('cores')} cores, Python "
        f"{of.get('python')}, torch {of.get('torch')}, transformers {of.get('transformers')}, "
        f"{content['time'][:10]}.\n"
        f"A product of large matrices runs at TFLOP/s of {products}; a copy moves\n"
        f"{ceilings.get('bytes', 0) / 1e12:.2f} TB/s. `share` is of the speed that those allow.\n"
    )


def _checks(content: Mapping[str, Any]) -> Sequence[str]:
    for name, part in content["parts"].items():
        for check in part["checks"]:
            yield f"{'FAILED' if check['error'] else 'ok':6}  {name}: {check['check']}"
            yield from (f"          {line}" for line in [check["error"], *check["said"]] if line)


def _rows(content: Mapping[str, Any], part: str) -> list[Row]:
    return content["parts"].get(part, {}).get("rows", [])


def _entry(row: Row, who: str) -> Mapping[str, Any]:
    return row["contenders"].get(who, {})


def rate(who: str) -> Cell:
    return lambda row: f"{_entry(row, who)['rate']:.1f}" if _entry(row, who) else ""


def milliseconds(who: str) -> Cell:
    return lambda row: f"{_entry(row, who)['median'] * 1000:.2f}" if _entry(row, who) else ""


def times(who: str, *peers: str) -> Cell:
    """How often faster than the first of the peers that is there, with the spread of the rounds."""

    def cell(row: Row) -> str:
        ours = _entry(row, who)
        peer = next((_entry(row, name) for name in peers if _entry(row, name)), None)
        if not ours or not peer:
            return ""
        ratios = [a / b for a, b in zip(peer["times"], ours["times"])]
        return f"{peer['median'] / ours['median']:.2f} ({min(ratios):.2f}-{max(ratios):.2f})"

    return cell


def fastest(who: str) -> Cell:
    """`times` of the row's own peer."""
    return lambda row: times(who, row["peer"])(row)


def share(who: str) -> Cell:
    return lambda row: f"{_entry(row, who)['share']:.2f}" if "share" in _entry(row, who) else ""


def memory(who: Optional[str] = None) -> Cell:
    """In MB; without a name the peer's."""

    def cell(row: Row) -> str:
        entry = _entry(row, who or row["peer"])
        return f"{entry['peak_bytes'] / 2**20:.0f}" if entry else ""

    return cell


TABLES: tuple[tuple[str, str, list[tuple[str, Cell]]], ...] = (
    (
        "captioning",
        "captions a second",
        [
            *((who, rate(who)) for who in ("ours", "compiled", "transformers", "original's")),
            ("original, fp32", rate("original, fp32")),
            ("ours times original's", times("ours", "original's", "transformers")),
            ("compiled", times("compiled", "original's", "transformers")),
            ("ours ms", milliseconds("ours")),
            ("compiled ms", milliseconds("compiled")),
            ("share", share("ours")),
            ("compiled", share("compiled")),
            ("MB", memory("ours")),
            ("peer's", memory()),
        ],
    ),
    (
        "training",
        "images a second",
        [
            ("ours", rate("ours")),
            ("MLE + SMILE", rate("ours, MLE + SMILE")),
            ("compiled", rate("ours, compiled")),
            ("transformers", rate("transformers")),
            ("in fp32", rate("transformers, fp32")),
            ("ours times transformers", times("ours", "transformers")),
            ("its fp32", times("ours", "transformers, fp32")),
            ("compiled, its fp32", times("ours, compiled", "transformers, fp32")),
            ("share", share("ours")),
            ("compiled", share("ours, compiled")),
            ("MB", memory("ours")),
            ("peer's", memory()),
        ],
    ),
    (
        "objective",
        "loss and gradients",
        [
            ("fastest peer", lambda row: row["peer"]),
            ("ms", lambda row: milliseconds(row["peer"])(row)),
            ("MB", memory()),
            ("SMILE ms", milliseconds("our SMILE")),
            ("times", fastest("our SMILE")),
            ("MB", memory("our SMILE")),
            ("share", share("our SMILE")),
            ("MLE ms", milliseconds("our MLE")),
            ("times", fastest("our MLE")),
            ("MB", memory("our MLE")),
            ("share", share("our MLE")),
            ("mixture ms", milliseconds("our 0.01 MLE + 0.99 SMILE")),
            ("times", fastest("our 0.01 MLE + 0.99 SMILE")),
        ],
    ),
    (
        "input",
        "photos a second",
        [
            *((who, rate(who)) for who in ("ours", "original's", "decoding alone")),
            ("times original's", times("ours", "original's")),
        ],
    ),
)


def _needed(content: Mapping[str, Any]) -> str:
    """What the card takes a second, to be held against the input's table."""
    found = []
    for part, whos in (
        ("training", ("ours", "ours, compiled")),
        ("captioning", ("ours", "compiled")),
    ):
        rates = [
            _entry(row, who)["rate"]
            for row in _rows(content, part)
            for who in whos
            if "rate" in _entry({"contenders": {}, **row}, who)
        ]
        if rates:
            found.append(f"{part} takes up to {max(rates):.0f}")
    return f"Of the photos, {' and '.join(found)} a second.\n" if found else ""


def _unmeasured(content: Mapping[str, Any]) -> str:
    """The one place that says what is missing, failed, or was not come to."""
    lines = []
    for name, part in content["parts"].items():
        if part["ended"]:
            lines.append(f"{name} {part['ended']}")
        failed = [f"{line['row']} ({line['error']})" for line in part["rows"] if line["error"]]
        failed += [
            f"{row['row']}: {who} ({why})"
            for row in part["rows"]
            for who, why in row.get("failed", {}).items()
        ]
        lines += [
            f"{name}, {line}" for line in [*part["not_checked"], *part["not_measured"], *failed]
        ]
    return f"Not measured: {'; '.join(lines) or 'nothing'}.\n"


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Columns below each other, the first to the left; those that hold nothing are left out."""
    used = [column for column in zip(*lines) if any(column[1:])]
    widths = [max(map(len, column)) for column in used]
    first, *others = zip(used, widths)
    made = [[cell.ljust(first[1]) for cell in first[0]]]
    made += [[cell.rjust(width) for cell in column] for column, width in others]
    return ["  ".join(cells).rstrip() for cells in zip(*made)]


def _block(lines: Sequence[str]) -> str:
    return "\n".join(["```", *lines, "```", ""])


def between(page: str) -> str:
    """What stands between the marks of a page."""
    return page.partition(BEGIN)[2].partition(END)[0]


def with_tables(page: str, text: str) -> str:
    """The page with `text` between its marks."""
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
