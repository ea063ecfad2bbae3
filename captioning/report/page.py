"""Renders the report as one HTML file, which needs no other files and no network."""

from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from captioning.data.caption_files import ImageId
from captioning.files.writing import write_text
from captioning.metrics.scoring import skipped_lines
from captioning.report.comparison import Comparison
from captioning.report.comparison_table import score_cells, select_columns
from captioning.report.figures import assign_styles, draw_curves, draw_lengths
from captioning.report.picture import load_picture
from captioning.report.plane import draw_plane
from captioning.report.runs import Run, differing_settings, recorded_commands, recorded_versions
from captioning.report.templates import read_template
from captioning.report.tokens import token_figure
from captioning.runtime.errors import UserError
from captioning.scenes.facts import mark_words

NUM_EXAMPLES = 8


def write_report(comparison: Comparison, output: Path, note: Optional[str] = None) -> None:
    """Write the page of a comparison. note: a text at the top. Raises UserError."""
    write_text(render(comparison, note), output)


def render(comparison: Comparison, note: Optional[str] = None) -> str:
    """Return the report's page as HTML. note: a text at the top."""
    rows, runs = comparison.rows, comparison.runs
    styles = assign_styles([row.kind for row in rows])
    columns = select_columns(rows)
    tokens = no_tokens = None
    try:
        tokens = token_figure(comparison)
    except UserError as error:
        no_tokens = error

    def words(row, image_id):
        """Return pairs (word, mark) of a caption; without a known scene, it is a single word."""
        scene = comparison.scenes.get(image_id)
        caption = row.captions[image_id]
        return mark_words(caption, scene) if scene else [(caption, None)]

    return read_template(Path(__file__).with_name("page.html")).render(
        comparison=comparison,
        note=note,
        colours={row.label: style.colour for row, style in zip(rows, styles)},
        columns=columns,
        scores=score_cells(rows, columns),
        other_scores=score_cells(rows, select_columns(rows, explained=False)),
        skipped=_skipped(runs),
        plane=draw_plane(rows),
        curves=list(draw_curves(runs)),
        lengths=draw_lengths(rows, runs[0].scoring_config.language),
        examples=_evenly_spaced(comparison.image_ids),
        picture=lambda image_id: load_picture(comparison.image_path(image_id)),
        words=words,
        commands=recorded_commands,
        versions=recorded_versions,
        settings=[[name, *values] for name, values in differing_settings(runs).items()],
        tokens=tokens,
        no_tokens=no_tokens,
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


def _skipped(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return {line about skipped metrics: labels of the runs that skipped them}."""
    labels = {}
    for run in runs:
        for line in skipped_lines(run.skipped):
            labels.setdefault(line, []).append(run.label)
    return labels
