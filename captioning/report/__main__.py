"""Compare finished runs in one HTML page.

python -m captioning.report output/demo/mle output/demo/smile output/demo/mle_smile
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from captioning.files.stores import require_writable
from captioning.report.comparison import read_comparison
from captioning.report.comparison_table import score_table
from captioning.report.page import write_report
from captioning.runtime.errors import visible
from captioning.runtime.program import program_parser, run_program


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program; return 0, or 2 after a one-line error for the user."""
    parser = program_parser("python -m captioning.report", __doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's output_dir")
    parser.add_argument("--output", type=Path, help="default: report.html above the runs, or in it")
    parser.add_argument("--split", choices=("val", "test"), default="test")
    arguments = parser.parse_args(argv)
    output = arguments.output or default_output(arguments.runs)

    def report():
        if arguments.output:  # before human captions are scored, which may take minutes
            require_writable(str(output.parent))
        comparison = read_comparison(arguments.runs, arguments.split)
        print(visible(score_table(comparison.rows)))
        write_report(comparison, output)
        print(f"the report is {output}", file=sys.stderr)

    return run_program(report, "stopped")


def default_output(runs: Sequence[Path]) -> Path:
    """Return report.html in the folder of a single run, or in the folder that contains all runs."""
    if len(runs) == 1:
        return runs[0] / "report.html"
    return Path(os.path.commonpath([run.absolute().parent for run in runs]), "report.html")


if __name__ == "__main__":
    sys.exit(main())
