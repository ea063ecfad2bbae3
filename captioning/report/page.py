"""Renders the report as one HTML file, which needs no other files and no network."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Optional

import jinja2

from captioning.data.caption_files import ImageId
from captioning.files.writing import write_text
from captioning.metrics.score_table import skipped_lines
from captioning.report.comparison import Comparison, Row
from captioning.report.comparison_table import format_cell, other_columns, select_columns
from captioning.report.figures import assign_styles, draw_curves, length_histogram
from captioning.report.picture import load_picture
from captioning.report.plane import choose_axes, draw_plane
from captioning.report.runs import Run, differing_settings, recorded_commands, recorded_versions
from captioning.report.tokens import find_charged, find_spared, token_figure
from captioning.runtime.errors import UserError
from captioning.scenes.facts import mark_words

EXAMPLES = 8

_templates = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,  # captions can contain anything
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


def write_report(comparison: Comparison, output: Path, note: Optional[str] = None) -> None:
    """Write the page of a comparison. note: a text at the top. Raises UserError."""
    write_text(render(comparison, note), Path(output))


def render(comparison: Comparison, note: Optional[str] = None) -> str:
    """Return the report's page as HTML. note: a text at the top."""
    rows, runs = comparison.rows, comparison.runs
    styles = assign_styles([row.kind for row in rows])
    colours = {row.label: style.colour for row, style in zip(rows, styles)}
    return _templates.get_template("page.html").render(
        comparison=comparison,
        runs=runs,
        note=note,
        colours=colours,
        rows=rows,
        columns=select_columns(rows),
        others=other_columns(rows),
        cell=format_cell,
        skipped=_skipped(runs),
        plane=draw_plane(rows),
        axes=choose_axes(rows),
        curves=list(draw_curves(runs)),
        without_log=[run.label for run in runs if not any("loss" in e for e in run.log)],
        not_selected=[run.label for run in runs if run.is_trained and not run.selected],
        lengths=length_histogram(_with_all_human_captions(comparison)),
        examples=[_example_values(comparison, i) for i in _evenly_spaced(comparison.image_ids)],
        origins=[(run, recorded_commands(run), recorded_versions(run)) for run in runs],
        differing=differing_settings(runs),
        **_token_values(comparison),
    )


def example_lines(comparison: Comparison) -> str:
    """Return the first example for a terminal: the image's path, then a line per caption."""
    image_id = _evenly_spaced(comparison.image_ids)[0]
    width = max(len(row.label) for row in comparison.rows)
    captions = [f"  {row.label:<{width}}  {row.captions[image_id]}" for row in comparison.rows]
    return "\n".join([str(comparison.image_path(image_id) or f"image {image_id}"), *captions])


def _evenly_spaced(ids: Sequence[ImageId]) -> list[ImageId]:
    """Return up to EXAMPLES ids at equal distances, whatever the captions are."""
    count = min(EXAMPLES, len(ids))
    return [ids[(2 * i + 1) * len(ids) // (2 * count)] for i in range(count)]


def _example_values(comparison: Comparison, image_id: ImageId) -> dict[str, Any]:
    """Return the values of an image that the template page.html needs.

    The key "captions" has a pair (label, words) per row. A word is a pair (text, mark), see
    `captioning.scenes.facts.mark_words`. Without a known scene, the whole caption is one word with
    the mark None.
    """
    scene = comparison.scenes.get(image_id)
    captions = []
    for row in comparison.rows:
        text = row.captions[image_id]
        captions.append((row.label, [(text, None)] if scene is None else mark_words(text, scene)))
    picture = load_picture(comparison.image_path(image_id))
    return {"image_id": image_id, "picture": picture, "captions": captions}


def _with_all_human_captions(comparison: Comparison) -> list[Row]:
    """Return the rows. The captions of the human row are all references, with numbers as keys."""
    if not comparison.human:
        return comparison.runs
    captions = dict(enumerate(chain(*comparison.references.values())))
    return [comparison.human._replace(captions=captions), *comparison.runs]


def _skipped(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return {line about skipped metrics: labels of the runs that skipped them}."""
    found = {}
    for run in runs:
        for line in skipped_lines(run.skipped):
            found.setdefault(line, []).append(run.label)
    return found


def _token_values(comparison: Comparison) -> dict[str, Any]:
    """Return the values that the template needs for the section on tokens.

    If the losses of tokens could not be computed, "no_tokens" has the reason.
    """
    try:
        figure = token_figure(comparison)
    except UserError as error:
        return {"tokens": None, "no_tokens": str(error)}
    mle = [token.mle for token in figure.tokens]
    smile = [token.smile for token in figure.tokens]
    return {
        "tokens": figure,
        "spared": find_spared(figure.tokens),
        "charged": find_charged(figure.tokens),
        "largest": max(mle + smile),
        "totals": {"mle": sum(mle), "smile": sum(smile)},
    }
