"""Formats scores as a table for a terminal."""

from collections.abc import Iterator, Mapping, Sequence

from captioning.metrics.evaluator import Scores
from captioning.metrics.registry import METRICS, metric_of

WIDTH = 80


def format_table(scores: Scores, captions: int) -> str:
    """Return the scores in rows of at most 80 characters, then settings and skipped metrics.

    captions: the number of scored captions. Half the width of a score's interval is shown below the
    score. A skipped metric has "-" as its score.
    """
    names = [name for name in METRICS if name in scores.metrics or name in scores.skipped]
    rows = []
    for block in _blocks([_column(name, scores) for name in names]):
        # The last row, of intervals, is left out if all its cells are empty.
        rows += ["  ".join(line).rstrip() for line in zip(*block) if "".join(line).strip()]
    if any(estimate.low is not None for estimate in scores.metrics.values()):
        rows.append("±: half of the 95 % interval over images")
    # Counts of 0, such as 0 truncated captions, and texts of several lines are not shown. They are
    # in metrics.json.
    settings = [
        f"{name}: {value}"
        for name, value in scores.settings.items()
        if value != 0 and "\n" not in str(value)
    ]
    rows.append(", ".join([f"{captions} captions", *settings]))
    return "\n".join([*rows, *skipped_lines(scores.skipped)])


def skipped_lines(skipped: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each reason, with the metrics concerned. skipped: {metric: reason}."""
    names = [name for name in METRICS if name in skipped]
    for reason in dict.fromkeys(skipped[name] for name in names):
        titles = ", ".join(metric_of(name).title for name in names if skipped[name] == reason)
        yield f"{titles} skipped: {reason}"


def _column(name: str, scores: Scores) -> list[str]:
    """Return a metric's title, score and half of its interval, padded to the same width."""
    metric = metric_of(name)
    score, spread = "-", ""
    if name in scores.metrics:
        estimate = scores.metrics[name]
        score = f"{estimate.value:.{metric.decimals}f}"
        if estimate.low is not None:
            spread = f"±{(estimate.high - estimate.low) / 2:.{metric.decimals}f}"
    width = max(map(len, (metric.title, score, spread)))
    return [cell.rjust(width) for cell in (metric.title, score, spread)]


def _blocks(columns: Sequence[list[str]]) -> Iterator[list[list[str]]]:
    """Yield groups of columns that together are at most WIDTH wide."""
    block, width = [], 0
    for column in columns:
        if width + len(column[0]) > WIDTH:
            yield block
            block, width = [], 0
        block.append(column)
        width += len(column[0]) + 2
    yield block


def align(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of cells as a table: first column left-aligned, others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
        for line in lines
    )
