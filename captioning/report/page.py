"""The report as one HTML file that needs nothing beside it."""

from pathlib import Path
from typing import Any, Optional

import jinja2

from captioning.files.writing import write_text
from captioning.metrics.score_table import COLUMNS
from captioning.report import provenance
from captioning.report.comparison import Comparison
from captioning.report.comparison_table import other_metrics, table_of
from captioning.report.curves import curves
from captioning.report.examples import examples
from captioning.report.figures import styles
from captioning.report.length_histogram import length_histogram
from captioning.report.plane import axes_of, plane
from captioning.report.tokens import charged, spared, token_picture
from captioning.runtime.errors import UserError

_templates = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,  # captions can hold anything
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


def write_report(comparison: Comparison, output: Path, note: Optional[str] = None) -> None:
    """Write the page of a comparison, with a sentence at the top. Raises UserError."""
    write_text(render(comparison, note), Path(output))


def render(comparison: Comparison, note: Optional[str] = None) -> str:
    """The page's HTML."""
    rows, runs = comparison.rows, comparison.runs
    colours = dict(zip((r.label for r in rows), (s.colour for s in styles([r.kind for r in rows]))))
    return _templates.get_template("page.html").render(
        comparison=comparison,
        runs=runs,
        note=note,
        colours=colours,
        table=table_of(comparison),
        others=other_metrics(comparison),
        skipped=_skipped(comparison),
        plane=plane(rows),
        plane_axes=axes_of(rows),
        curves=curves(runs),
        without_log=[run.label for run in runs if not any("loss" in e for e in run.log)],
        lengths=length_histogram(_length_groups(comparison)),
        examples=examples(comparison),
        origins=[(run, provenance.origin(run), provenance.versions(run)) for run in runs],
        differing=provenance.differing(runs),
        **_tokens(comparison),
    )


def _length_groups(comparison: Comparison) -> list[tuple[str, str, list[str]]]:
    """Every human caption of the split, not only those held out, and those of each run."""
    groups = [(run.label, run.kind, list(run.captions.values())) for run in comparison.runs]
    if comparison.human is None:
        return groups
    human = [text for group in comparison.references.values() for text in group]
    return [(comparison.human.label, comparison.human.kind, human), *groups]


def _skipped(comparison: Comparison) -> list[tuple[str, str, str]]:
    """(metrics, runs, why) of what could not be computed, the metrics of one reason together."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in dict.fromkeys(name for run in comparison.runs for name in run.skipped):
        of = [run for run in comparison.runs if name in run.skipped]
        labels = ", ".join(run.label for run in of)
        title = COLUMNS[name].title if name in COLUMNS else name
        found.setdefault((labels, of[0].skipped[name]), []).append(title)
    return [(", ".join(titles), labels, why) for (labels, why), titles in found.items()]


def _tokens(comparison: Comparison) -> dict[str, Any]:
    """What the template says of the tokens: the picture, or why there is none."""
    try:
        found = token_picture(comparison)
    except UserError as error:
        return {"tokens": None, "no_tokens": str(error)}
    return {
        "tokens": found,
        "no_tokens": None,
        "spared": spared(found.tokens),
        "charged": charged(found.tokens),
        "largest": max(max(token.mle, token.smile) for token in found.tokens),
        "totals": {
            name: sum(getattr(token, name) for token in found.tokens) for name in ("mle", "smile")
        },
    }
