"""Write a GPU's results to docs/benchmarks.md, between two marks.

    python -m benchmarks.gpu_tables output/gpu/gpu.json

The JSON file is copied to docs/gpu.json, so that a test can compare it with the page.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from benchmarks.topic import lines_of

DOCS = Path(__file__).resolve().parent.parent / "docs"
BEGIN, END = "<!-- from gpu.json -->\n", "<!-- to here -->\n"
UNMEASURED = """\
**No GPU has been measured.** Nothing has run on one: kernels, autocast, float16 with its scaler,
compiled steps and CUDA graphs, NCCL, prefetching out of pinned memory, the sizes of slices.
"""


def tables(content: Mapping[str, Any]) -> str:
    """The text for a gpu.json: the GPU, checks and rows as printed, and what was not measured."""
    parts = content["parts"]
    machine = next(part["machine"] for part in parts.values() if "machine" in part)
    blocks = [", ".join(f"{k} {value}" for k, value in machine.items()) + ".\n"]
    missing = []
    for name, part in parts.items():
        lines = [line for row in part["rows"] for line in lines_of(row)]
        blocks += ["\n".join([f"{name}\n\n```", *lines[1:], "```", ""])] if lines else []
        missing += [f"{name} {part['ended']}"] if part["ended"] else []
        missing += [f"{name}, {row}" for row in part["planned"][len(part["rows"]) :]]
    return "\n".join([*blocks, f"Not measured: {'; '.join(missing) or 'nothing'}.\n"])


def between(page: str) -> str:
    """The text between the marks of a page."""
    return page.partition(BEGIN)[2].partition(END)[0]


def with_tables(page: str, text: str) -> str:
    """The page with `text` between its marks. Raises ValueError if a mark is missing."""
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
        print(f"{arguments.file} is from a rehearsal, which measures nothing", file=sys.stderr)
        return 2
    page = arguments.docs / "benchmarks.md"
    page.write_text(with_tables(page.read_text(), tables(content)))
    (arguments.docs / "gpu.json").write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
