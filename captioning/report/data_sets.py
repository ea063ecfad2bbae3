"""Whether runs were scored on the same data set."""

from collections.abc import Sequence
from pathlib import Path

from captioning.data.sources import SOURCES
from captioning.report.runs import Run
from captioning.runtime.errors import UserError


def refuse_other_data(runs: Sequence[Run], split: str) -> None:
    """Raises UserError where a run's captions were scored on other data than the first's."""
    first = runs[0]
    expected = _data_of(first, split)
    for run in runs[1:]:
        for key, value in _data_of(run, split).items():
            if value != expected[key]:
                raise UserError(
                    f"{first.folder} and {run.folder} were scored on different data sets: {key} is "
                    f"{expected[key]} and {value}; compare runs of one data set"
                )


def _data_of(run: Run, split: str) -> dict[str, str]:
    config = run.scored_with
    known = SOURCES[config.dataset].annotations.get(split)
    return {
        "dataset": config.dataset,
        "ann_root": str(Path(config.ann_root).resolve()),
        f"{split}_file": str(getattr(config, f"{split}_file") or known),
        "image_root": str(Path(config.image_root).resolve()),
    }
