"""The report as one HTML file without external resources."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import jinja2

from captioning.data.caption_files import ImageId
from captioning.files.writing import write_text
from captioning.metrics.registry import metric_of
from captioning.report.comparison import Comparison
from captioning.report.comparison_table import cell, columns_of, other_columns
from captioning.report.epochs import selected_epochs
from captioning.report.figures import curves, length_histogram, styles
from captioning.report.picture import picture
from captioning.report.plane import choose_axes, plane
from captioning.report.runs import differing, origin, versions
from captioning.report.tokens import charged, spared, token_picture
from captioning.runtime.errors import UserError
from captioning.scenes.facts import mark

EXAMPLES = 8

_templates = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,  # captions can contain anything
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


def write_report(comparison: Comparison, output: Path, note: Optional[str] = None) -> None:
    """Write the page of a comparison. note: a sentence at the top. Raises UserError."""
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
        rows=rows,
        columns=columns_of(rows),
        others=other_columns(rows),
        cell=cell,
        skipped=_skipped(comparison),
        plane=plane(rows),
        axes=choose_axes(rows),
        curves=list(curves(runs)),
        without_log=[run.label for run in runs if not any("loss" in e for e in run.log)],
        selected=list(selected_epochs(runs)),
        not_selected=[run.label for run in runs if run.trained and run.selected is None],
        lengths=length_histogram(_length_groups(comparison)),
        examples=[_example(comparison, i) for i in _evenly_spaced(comparison.image_ids)],
        origins=[(run, origin(run), versions(run)) for run in runs],
        differing=differing(runs),
        **_tokens(comparison),
    )


def example_lines(comparison: Comparison) -> str:
    """The first example for a terminal: the image's file, then one caption per line."""
    image_id = _evenly_spaced(comparison.image_ids)[0]
    width = max(len(row.label) for row in comparison.rows)
    captions = [f"  {row.label:<{width}}  {row.captions[image_id]}" for row in comparison.rows]
    return "\n".join([str(comparison.image_path(image_id) or f"image {image_id}"), *captions])


def _evenly_spaced(ids: Sequence[ImageId]) -> list[ImageId]:
    """EXAMPLES of the ids at equal distances. Captions do not influence the choice."""
    count = min(EXAMPLES, len(ids))
    return [ids[(2 * i + 1) * len(ids) // (2 * count)] for i in range(count)]


def _example(comparison: Comparison, image_id: ImageId) -> dict[str, Any]:
    """An example's values: its captions are (label, words) per row; words are (text, is true)."""
    scene = comparison.scenes.get(image_id)
    captions = []
    for row in comparison.rows:
        text = row.captions[image_id]
        captions.append((row.label, [(text, None)] if scene is None else mark(text, scene)))
    shown = picture(comparison.image_path(image_id))
    return {"image_id": image_id, "picture": shown, "captions": captions}


def _length_groups(comparison: Comparison) -> list[tuple[str, str, list[str]]]:
    """The captions of each row. For humans: all captions, not only the held-out ones."""
    human = [text for group in comparison.references.values() for text in group]
    return [
        (row.label, row.kind, human if row is comparison.human else list(row.captions.values()))
        for row in comparison.rows
    ]


def _skipped(comparison: Comparison) -> list[tuple[str, str, str]]:
    """(metrics, runs, reason) of metrics that could not be computed, grouped by reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in dict.fromkeys(name for run in comparison.runs for name in run.skipped):
        of = [run for run in comparison.runs if name in run.skipped]
        labels = ", ".join(run.label for run in of)
        title = metric_of(name).title
        found.setdefault((labels, of[0].skipped[name]), []).append(title)
    return [(", ".join(titles), labels, why) for (labels, why), titles in found.items()]


def _tokens(comparison: Comparison) -> dict[str, Any]:
    """The template's values for the section on tokens: the picture, or why there is none."""
    try:
        found = token_picture(comparison)
    except UserError as error:
        return {"tokens": None, "no_tokens": str(error)}
    mle, smile = ([getattr(token, name) for token in found.tokens] for name in ("mle", "smile"))
    return {
        "tokens": found,
        "spared": spared(found.tokens),
        "charged": charged(found.tokens),
        "largest": max(*mle, *smile),
        "totals": {"mle": sum(mle), "smile": sum(smile)},
    }
