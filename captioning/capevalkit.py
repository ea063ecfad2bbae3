"""Compute a metric of captioning.evaluate for capevalkit, which runs this program as a script.

    python -m captioning.capevalkit --metric clipscore --predictions predictions.jsonl \\
        --references references.jsonl --output scores.json

Further arguments are those of captioning.evaluate. docs/metrics.md has the metric.toml that
capevalkit needs.
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from adapters.program import program_parser
from captioning import evaluate
from captioning.files.reading import read_json, read_lines
from captioning.files.writing import write_json
from captioning.metrics.registry import EVALUATORS
from captioning.runtime.errors import UserError
from captioning.runtime.program import run_program


def main(argv=None) -> int:
    """Run the program and return its exit code, which is 2 after a one-line error for the user."""
    parser = program_parser("python -m captioning.capevalkit", __doc__)
    add = parser.add_argument
    add("--metric", required=True, choices=EVALUATORS, metavar="NAME", help="of --metrics")
    add("--predictions", required=True, help="lines of {id, caption, image}")
    add("--references", required=True, help="lines of {id, references}")
    add("--image-dir", help="the images' folder; by default the predictions name files")
    add("--output", required=True, type=Path, help="the scores' JSON file")
    arguments, options = parser.parse_known_args(argv)
    return run_program(lambda: score(arguments, options), "stopped: nothing was written")


def score(arguments: argparse.Namespace, options: Sequence[str]) -> int:
    """Run captioning.evaluate, and write {metric: {"score", "per_item": {image id: score}}}.

    Captions without a score are left out of per_item. options: further arguments of
    captioning.evaluate. Returns the exit code of captioning.evaluate. Raises UserError.
    """
    images = arguments.image_dir or arguments.predictions
    argv = [arguments.predictions, "--references", arguments.references, "--images", images]
    with tempfile.TemporaryDirectory() as folder:
        argv += ["--metrics", arguments.metric, "--output_dir", folder, *options]
        if code := evaluate.main(argv):
            return code
        summary = read_json(Path(folder, "metrics.json"))
        rows = list(read_lines(Path(folder, "per_caption.jsonl")))
    if not summary["metrics"]:
        raise UserError(f"nothing was scored: {'; '.join(set(summary['skipped'].values()))}")
    output = {}
    for name, estimate in summary["metrics"].items():
        values = {row["image_id"]: row[name] for row in rows if row.get(name) is not None}
        output[name] = {"score": estimate["value"], **({"per_item": values} if values else {})}
    write_json(output, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
