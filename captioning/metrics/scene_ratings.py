"""Rate runs' captions of scenes by their facts, in a file for captioning.metrics.correlation.

    python -m captioning.metrics.scene_ratings output/sweep/mle output/sweep/smile \\
        --facts_file data/scenes/scenes.json --references data/scenes/scenes_test.json

The ratings are true facts, the share of right facts, and true less wrong facts. A line also has the
metrics that the run has stored for the caption, and those of a checklist by an exact judge.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Optional

from captioning.data.annotations import read_annotations
from captioning.files.reading import parse_json_lines, read_text
from captioning.files.writing import write_text
from captioning.metrics.checklist import Question, scores_of
from captioning.metrics.facts import stated_and_true
from captioning.runtime.errors import UserError
from captioning.runtime.program import exit_code
from captioning.scenes.checklist import checklist_of, judge
from captioning.scenes.facts import read_caption
from captioning.scenes.make import read_scenes

SCORED = Path("result", "test", "per_caption.jsonl")
AS_RATINGS = ("true_facts", "wrong_facts")  # the runs' metrics that are ratings here


def rated_lines(runs: Sequence[Path], facts: Path, references: Path) -> Iterator[str]:
    """Yield a line for each caption of the runs' test split. Raises UserError."""
    scenes = read_scenes(facts)
    samples = {sample.image_id: sample for sample in read_annotations(references)}
    for run in runs:
        path = run / SCORED
        rows = [row for _, row in parse_json_lines(read_text(path).split("\n"), path)]
        for row in rows:
            if row["image_id"] not in scenes or row["image_id"] not in samples:
                raise UserError(f"{path}: image_id {row['image_id']!r} is no scene of {references}")
        asked = [checklist_of(scenes[row["image_id"]]) for row in rows]
        lists = [[Question(q["question"], q["answer"]) for q in each] for each in asked]
        checked = scores_of([judge(row["caption"]) for row in rows], lists).per_image
        for number, row in enumerate(rows):
            sample = samples[row.pop("image_id")]
            caption = row.pop("caption")
            stated, true = stated_and_true(read_caption(caption), scenes[sample.image_id])
            right = true / stated if stated else float("nan")
            yield json.dumps(
                {
                    "id": f"{run.name}/{sample.image_id}",
                    "system": run.name,
                    "image": sample.image,
                    "caption": caption,
                    "references": sample.captions,
                    "score": {
                        "true facts": true,
                        "right": right,
                        "true - wrong": 2 * true - stated,
                    },
                    "metrics": {
                        **{name: value for name, value in row.items() if name not in AS_RATINGS},
                        **{name: values[number] for name, values in checked.items()},
                    },
                }
            )


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the program and return its exit code: 2 after a one-line error for the user."""
    parser = argparse.ArgumentParser(
        prog="python -m captioning.metrics.scene_ratings",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("runs", nargs="+", type=Path, help="folders of runs with a scored test split")
    add("--facts_file", type=Path, required=True, help="the scenes' contents")
    add("--references", type=Path, required=True, help="human captions of the test split")
    add("--output", type=Path, default=Path("output/ratings.jsonl"), help="default: %(default)s")
    arguments = parser.parse_args(argv)

    def program() -> None:
        lines = rated_lines(arguments.runs, arguments.facts_file, arguments.references)
        text = "".join(line + "\n" for line in lines)
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        write_text(text, arguments.output)

    return exit_code(program, "stopped: nothing was written")


if __name__ == "__main__":
    sys.exit(main())
