"""Train MLE, SMILE and mixtures on real photographs, over several seeds, and say what they do.

python -m benchmarks.real_photos
python -m benchmarks.real_photos --seeds 2 --objectives mle,smile,focal --jobs 1

For each seed: a captioner is trained with MLE on two thirds of the training photos, and goes on
with each objective; a judge is trained on the last third and the validation photos. The captions of
the test photos are scored, and read by the judge. What is done is not done again; one that was
stopped goes on. The folder gets results.json, table.md, plane.svg, report.html, and a folder a run.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from benchmarks.real_photos.figure import draw
from benchmarks.real_photos.parts import write_few
from benchmarks.real_photos.runs import FINE_TUNING, Runs
from benchmarks.real_photos.summary import markdown, summarise
from captioning.config import load_config
from captioning.files.writing import write_json, write_text
from captioning.report.comparison import compare
from captioning.report.page import write_report
from captioning.runtime.errors import UserError
from captioning.runtime.program import exit_code
from captioning.runtime.progress import say
from captioning.sweep.variants import of_objectives, read_objectives

CONFIG = "configs/real_photos.yaml"
OBJECTIVES = "mle,smile"
QUICK_PHOTOS = {"train": 60, "val": 12, "test": 24}
QUICK = ("max_epoch=2", "eval_every=2", "min_word_count=2")
QUICK_TUNING = ("max_epoch=1", "eval_every=1", "warmup_steps=0")


def parse(argv: Optional[Sequence[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real_photos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--config", default=CONFIG, help=f"what all runs have in common (default: {CONFIG})")
    add("--seeds", type=int, help="how many (default: 3; with --quick 1)")
    add(
        "--objectives",
        default=OBJECTIVES,
        help=f"as for captioning.sweep (default: {OBJECTIVES}, and mixtures)",
    )
    add("--jobs", type=int, default=2, help="programs at the same time (default: 2)")
    add("--quick", action="store_true", help="a few photos and epochs, to see that it runs")
    add("--output_dir", type=Path, help="default: output/real_photos, with --quick -quick added")
    add("overrides", nargs="*", metavar="key=value", help="for keys of all runs")
    return parser.parse_intermixed_args(argv)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """0; 2 after a line that says what is wrong; 130 when it was stopped."""
    arguments = parse(argv)
    stopped = "stopped; the same command goes on from here"
    return exit_code(lambda: _run(arguments), stopped)


def _run(arguments: argparse.Namespace) -> None:
    for name in ("seeds", "jobs"):
        if getattr(arguments, name) is not None and getattr(arguments, name) < 1:
            raise UserError(f"--{name} is {getattr(arguments, name)}; it must be 1 or more")
    quick, keys = arguments.quick, list(arguments.overrides)
    folder = arguments.output_dir or Path("output/real_photos" + ("-quick" if quick else ""))
    chosen = of_objectives(read_objectives(arguments.objectives))
    if quick:
        config = load_config(arguments.config, keys)
        keys = [*QUICK, *write_few(config, QUICK_PHOTOS, folder / "photos"), *keys]
    seeds = arguments.seeds or (1 if quick else 3)
    tuning = QUICK_TUNING if quick else FINE_TUNING
    runs = Runs(arguments.config, folder, seeds, chosen, keys, tuning)
    runs.run(arguments.jobs)
    comparison = compare([runs.of(0, variant.name) for variant in chosen])
    summary = summarise(runs, comparison)
    write_json(summary.as_json(), folder / "results.json")
    text = markdown(summary)
    write_text(text, folder / "table.md")
    write_report(comparison, folder / "report.html", "These are the runs of the first seed.")
    say(draw(summary.rows, folder / "plane.svg"))
    print(text, end="")


if __name__ == "__main__":
    sys.exit(main())
