"""Renders the report as one HTML file, which needs no other files and no network."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Optional

import jinja2

from captioning.data.caption_files import ImageId
from captioning.files.writing import write_text
from captioning.metrics.score_table import skipped_lines
from captioning.report.comparison import Comparison, Row
from captioning.report.comparison_table import format_cell, other_columns, select_columns
from captioning.report.figures import assign_styles, draw_curves, length_histogram
from captioning.report.picture import Picture, load_picture
from captioning.report.plane import choose_axes, draw_plane
from captioning.report.runs import Run, differing_settings, recorded_commands, recorded_versions
from captioning.report.tokens import TokenFigure, token_figure
from captioning.runtime.errors import UserError
from captioning.scenes.facts import mark_words

NUM_EXAMPLES = 8

_templates = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,  # captions can contain anything
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


class Example(NamedTuple):
    """An image and its captions.

    captions: a pair (label, words) per row. A word is a pair (text, mark), see
    `captioning.scenes.facts.mark_words`. Without a known scene, the whole caption is one word with
    the mark None.
    """

    image_id: ImageId
    picture: Optional[Picture]
    captions: list[tuple[str, list[tuple[str, Optional[bool]]]]]


def write_report(comparison: Comparison, output: Path, note: Optional[str] = None) -> None:
    """Write the page of a comparison. note: a text at the top. Raises UserError."""
    write_text(render(comparison, note), Path(output))


def render(comparison: Comparison, note: Optional[str] = None) -> str:
    """Return the report's page as HTML. note: a text at the top."""
    rows, runs = comparison.rows, comparison.runs
    styles = assign_styles([row.kind for row in rows])
    colours = {row.label: style.colour for row, style in zip(rows, styles)}
    figure, problem = _token_figure(comparison)
    return _templates.get_template("page.html").render(
        comparison=comparison,
        note=note,
        colours=colours,
        columns=select_columns(rows),
        others=other_columns(rows),
        cell=format_cell,
        skipped=_skipped(runs),
        plane=draw_plane(rows),
        axes=choose_axes(rows),
        curves=list(draw_curves(runs)),
        lengths=length_histogram(_with_all_human_captions(comparison)),
        examples=[_example(comparison, i) for i in _evenly_spaced(comparison.image_ids)],
        origins=[(run, recorded_commands(run), recorded_versions(run)) for run in runs],
        differing=differing_settings(runs),
        tokens=figure,
        no_tokens=problem,
    )


def example_lines(comparison: Comparison) -> str:
    """Return the first example for a terminal: the image's path, then a line per caption."""
    image_id = _evenly_spaced(comparison.image_ids)[0]
    width = max(len(row.label) for row in comparison.rows)
    captions = [f"  {row.label:<{width}}  {row.captions[image_id]}" for row in comparison.rows]
    return "\n".join([str(comparison.image_path(image_id) or f"image {image_id}"), *captions])


def _evenly_spaced(ids: Sequence[ImageId]) -> list[ImageId]:
    """Return up to NUM_EXAMPLES ids at equal distances, whatever the captions are."""
    count = min(NUM_EXAMPLES, len(ids))
    return [ids[(2 * i + 1) * len(ids) // (2 * count)] for i in range(count)]


def _example(comparison: Comparison, image_id: ImageId) -> Example:
    scene = comparison.scenes.get(image_id)
    captions = []
    for row in comparison.rows:
        text = row.captions[image_id]
        captions.append((row.label, [(text, None)] if scene is None else mark_words(text, scene)))
    return Example(image_id, load_picture(comparison.image_path(image_id)), captions)


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


def _token_figure(comparison: Comparison) -> tuple[Optional[TokenFigure], Optional[str]]:
    """Return the losses of a caption's tokens, or None and why they could not be computed."""
    try:
        return token_figure(comparison), None
    except UserError as error:
        return None, str(error)
