"""Summarises the runs of several seeds: a table with intervals, a figure, differences, examples."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.real_photos.judge import HUMANS, captions_of, found
from captioning.config.objectives import objective_name
from captioning.files.reading import parse_json, read_json, read_text
from captioning.files.writing import write_json, write_text
from captioning.metrics.bootstrap import Estimate, mean
from captioning.metrics.registry import Metric
from captioning.report import comparison, plane
from captioning.report.comparison_table import columns_of, in_markdown, shown_value
from captioning.report.figures import look, save, styles
from captioning.report.page import write_report
from captioning.report.runs import metrics_of
from captioning.runtime.progress import log_line
from captioning.sweep.decoding_table import write_decodings
from captioning.sweep.decodings import decoding_folder
from captioning.sweep.over_seeds import half_width, mean_over_seeds
from captioning.sweep.runs import Sweep
from captioning.sweep.variants import Variant

FOUND = Metric("found", "Finds its photo", 1, False, "likeliest under their own photo", "%")
LENGTH = plane.Axis("cap_len", "words a caption")
UP = (plane.Axis("found", "captions that find their photo (%)"), plane.Axis("CIDEr", "CIDEr"))
EVERY = 30  # every 30th test photo by id is an example


def write_summary(folder: Path, seeds: Sequence[Path], variants: Sequence[Variant]) -> str:
    """Write results.json, table.md, plane.svg and report.html; return the table."""
    first = comparison.compare([seeds[0] / variant.name for variant in variants])
    judged = [found(seed, [variant.name for variant in variants]) for seed in seeds]
    of_seeds: dict[str, dict[str, list[float]]] = {}  # {label: {metric: one value per seed}}

    def row(label: str, kind: str, name: str, metrics: Sequence[Mapping]) -> comparison.Row:
        """A row with the means over all seeds."""
        each = [
            comparison.Row(label, kind, {}, {**of, FOUND.name: mean(list(by[name].values()))})
            for of, by in zip(metrics, judged)
        ]
        joined = mean_over_seeds(each, label)
        of_seeds[label] = {n: [one.metrics[n].value for one in each] for n in joined.metrics}
        return joined

    human = first.human.metrics if first.human else {}
    people = row(comparison.HUMANS, "humans", HUMANS, [{} for _ in seeds])
    rows = [people._replace(metrics={**human, **people.metrics})]
    for variant, run in zip(variants, first.runs):
        metrics = [_metrics(seed / variant.name) for seed in seeds]
        rows.append(row(variant.label, run.kind, variant.name, metrics))
    of_images = {
        variant.label: [
            _of_images(seed / variant.name, j[variant.name]) for seed, j in zip(seeds, judged)
        ]
        for variant in variants
    }
    mle = of_images.get(objective_name("mle"), [])
    results = {
        "scores": {row.label: {n: vars(e) for n, e in row.metrics.items()} for row in rows},
        "seeds": of_seeds,
        "differences_from_mle": {
            label: {name: vars(e) for name, e in differences(mle, each).items()}
            for label, each in of_images.items()
            if mle and each is not mle
        },
        "examples": _examples(seeds[0], variants),
    }
    write_json(results, folder / "results.json")
    columns = [*columns_of(rows), FOUND]
    lines = [[row.label, *(shown_value(column, row) for column in columns)] for row in rows]
    text = in_markdown([column.heading for column in columns], lines)
    for example in results["examples"]:
        text += "".join(f"\n{label}: {value}\n" for label, value in example.items())
    write_text(text, folder / "table.md")
    write_report(first, folder / "report.html", "These are the runs of the first seed.")
    log_line(_draw(rows, folder / "plane.svg"))
    return text


def write_decoding_summary(folder: Path, sweeps: Sequence[Sweep], decodings: Sequence[str]) -> str:
    """Write decodings.md and decodings.svg of all seeds; return the table."""
    judged = {}
    for sweep in sweeps:
        folders = [
            decoding_folder(Path(v.name), name) for v in sweep.variants for name in decodings
        ]
        for name, hits in found(sweep.folder, [str(each) for each in folders]).items():
            judged[sweep.folder / name] = {FOUND.name: mean(list(hits.values()))}
    return write_decodings(sweeps, decodings, folder, judged, [FOUND])


def differences(
    first: Sequence[Mapping[str, np.ndarray]], second: Sequence[Mapping[str, np.ndarray]]
) -> dict[str, Estimate]:
    """The differences of means over the same images and seeds. Intervals as in `over_seeds`."""
    estimates = {}
    for name in sorted(first[0].keys() & second[0].keys()):
        pairs = np.array([b[name] - a[name] for a, b in zip(first, second)])  # (seeds, images)
        pairs = pairs[:, ~np.isnan(pairs).any(0)]
        count = pairs.shape[1]
        if count >= 2:
            of_images = pairs.mean(0).var(ddof=1) / count
            value, reach = float(pairs.mean()), half_width(of_images, pairs.mean(1).tolist())
            estimates[name] = Estimate(value, value - reach, value + reach, count)
    return estimates


def _metrics(run: Path) -> dict[str, Estimate]:
    path = run / "result" / "test" / "metrics.json"
    return metrics_of(read_json(path)["metrics"], path)


def _of_images(run: Path, hits: Mapping[str, float]) -> dict[str, np.ndarray]:
    """{metric: one value per image} for metrics of single captions; nan without a value."""
    path = run / "result" / "test" / "per_caption.jsonl"
    lines = [parse_json(line, path, n) for n, line in enumerate(read_text(path).splitlines(), 1)]
    lines = sorted(lines, key=lambda line: str(line["image_id"]))
    columns: dict[str, list[Any]] = {
        metric: [line.get(metric) for line in lines]
        for metric in lines[0].keys() - {"image_id", "caption"}
    }
    columns[FOUND.name] = [hits.get(str(line["image_id"])) for line in lines]
    return {
        metric: np.array(values, dtype=float)
        for metric, values in columns.items()
        if all(isinstance(value, (int, float, type(None))) for value in values)
    }


def _examples(seed: Path, variants: Sequence[Variant]) -> list[dict[str, Any]]:
    """The captions of every 30th photo by id."""
    captions = {variant.label: captions_of(seed / variant.name) for variant in variants}
    ids = sorted(next(iter(captions.values())), key=lambda i: (isinstance(i, str), i))
    return [
        {"Photo": i, **{label: of_run[i] for label, of_run in captions.items()}}
        for i in ids[::EVERY]
    ]


def _draw(rows: Sequence[comparison.Row], path: Path) -> str:
    """Draw length against photos found, and against CIDEr; return the figure in words."""
    described = []
    with look():
        figure = Figure(figsize=(9.2, 3.6), layout="constrained")
        for ax, up in zip(figure.subplots(1, len(UP)), UP):
            axes = plane.Pair(LENGTH, up)
            present = [row for row in rows if plane.has_both(row, axes)]
            points = [
                plane.draw_point(ax, axes, row, style, row.label)
                for row, style in zip(present, styles([row.kind for row in present]))
            ]
            plane.name_axes(ax, axes)
            plane.name_points(figure, ax, points)
            described.append(plane.described(axes, points))
        save(figure, path)
    return "; ".join(described)
