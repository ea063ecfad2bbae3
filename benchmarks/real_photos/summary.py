"""Summarises the runs of several seeds in a table, a figure, differences and examples."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.real_photos.judge import HUMANS, judge_runs, read_captions
from captioning.config.objectives import objective_name
from captioning.files.reading import read_lines
from captioning.files.writing import write_json, write_text
from captioning.metrics.bootstrap import Estimate, mean_estimate
from captioning.metrics.registry import Metric
from captioning.report import comparison, plane
from captioning.report.comparison_table import rows_to_markdown, select_columns
from captioning.report.figures import figure_context, save_figure
from captioning.report.page import write_report
from captioning.report.runs import recorded_scores
from captioning.runtime.progress import log_line
from captioning.sweep.decoding_table import write_decodings
from captioning.sweep.decodings import decoding_folder
from captioning.sweep.over_seeds import half_width, mean_over_seeds
from captioning.sweep.runs import Sweep
from captioning.sweep.variants import Variant

PHOTO_FOUND = Metric(
    "found",
    "Finds its photo",
    meaning="likeliest under their own photo",
    unit="%",
)
# The figure has a panel for each of VERTICAL_AXES. LENGTH_AXIS is horizontal in both panels.
LENGTH_AXIS = plane.Axis("cap_len", "words a caption")
VERTICAL_AXES = (
    plane.Axis("found", "captions that find their photo (%)"),
    plane.Axis("CIDEr", "CIDEr"),
)
EXAMPLE_STEP = 30  # every 30th test photo by id is an example


def write_summary(folder: Path, seeds: Sequence[Path], variants: Sequence[Variant]) -> str:
    """Write results.json, table.md, plane.svg and report.html to `folder`; return the table.

    seeds: a folder for each seed, which contains the folder of a run for each variant.
    """
    names = [variant.name for variant in variants]
    first_seed = comparison.read_comparison([seeds[0] / name for name in names])
    hits = {seed: judge_runs(seed, names) for seed in seeds}
    seed_rows = {"Humans": _seed_rows(hits, HUMANS, "Humans", "humans")}
    for variant, run in zip(variants, first_seed.runs):
        seed_rows[variant.label] = _seed_rows(hits, variant.name, variant.label, run.kind)
    rows = [mean_over_seeds(each, label) for label, each in seed_rows.items()]
    seed_values = {
        row.label: {
            n: [each.metrics[n].value for each in seed_rows[row.label]] for n in row.metrics
        }
        for row in rows
    }
    if first_seed.human:  # the judge's score of humans is the only one so far
        metrics = {**first_seed.human.metrics, **rows[0].metrics}
        rows[0] = rows[0]._replace(metrics=metrics)
    image_values = {
        variant.label: [
            _read_image_values(seed / variant.name, hits[seed][variant.name]) for seed in seeds
        ]
        for variant in variants
    }
    results = {
        "scores": {row.label: {n: vars(e) for n, e in row.metrics.items()} for row in rows},
        "seeds": seed_values,
        "differences_from_mle": _differences_from_mle(image_values),
        "examples": _examples(seeds[0], variants),
    }
    write_json(results, folder / "results.json")
    text = rows_to_markdown([*select_columns(rows), PHOTO_FOUND], rows)
    for example in results["examples"]:
        text += "".join(f"\n{label}: {value}\n" for label, value in example.items())
    write_text(text, folder / "table.md")
    write_report(first_seed, folder / "report.html", "These are the runs of the first seed.")
    log_line(_draw(rows, folder / "plane.svg"))
    return text


def _seed_rows(
    hits: Mapping[Path, Mapping[str, Mapping[str, float]]], name: str, label: str, kind: str
) -> list[comparison.Row]:
    """Return the rows of a run for each seed: its scores and the share of photos found.

    hits: {folder of a seed: the result of `judge_runs`}. name: the run's folder, or HUMANS, which
    have no scores.
    """
    rows = []
    for seed, hits_of_runs in hits.items():
        metrics = {} if name == HUMANS else recorded_scores(seed / name, "test").metrics
        metrics[PHOTO_FOUND.name] = mean_estimate(list(hits_of_runs[name].values()))
        rows.append(comparison.Row(label, kind, {}, metrics))
    return rows


def write_decoding_summary(folder: Path, sweeps: Sequence[Sweep], decodings: Sequence[str]) -> str:
    """Write decodings.md and decodings.svg of all seeds to `folder`; return the table.

    sweeps: one per seed. decodings: the names of the decodings.
    """
    hit_rates = {}
    for sweep in sweeps:
        folders = [
            decoding_folder(Path(v.name), name) for v in sweep.variants for name in decodings
        ]
        for name, hits in judge_runs(sweep.folder, [str(path) for path in folders]).items():
            hit_rates[sweep.folder / name] = {PHOTO_FOUND.name: mean_estimate(list(hits.values()))}
    return write_decodings(sweeps, decodings, folder, hit_rates, [PHOTO_FOUND])


def _differences_from_mle(image_values):
    """Return {variant: {metric: estimate}} of `paired_differences`; {} without a run of MLE.

    image_values: {variant: the result of `_read_image_values` for each seed}.
    """
    mle = image_values.get(objective_name("mle"))
    if not mle:
        return {}
    return {
        label: {name: vars(e) for name, e in paired_differences(mle, values).items()}
        for label, values in image_values.items()
        if values is not mle
    }


def paired_differences(
    first: Sequence[Mapping[str, np.ndarray]], second: Sequence[Mapping[str, np.ndarray]]
) -> dict[str, Estimate]:
    """Return {metric: mean difference second - first} of two variants, with 95 % intervals.

    first, second: {metric: one value per image} for each seed, with the same images in the same
    order. A missing value is nan; the image is then left out. The intervals include the variance
    over images and over seeds, see `captioning.sweep.over_seeds`.
    """
    estimates = {}
    for name in sorted(first[0].keys() & second[0].keys()):
        pairs = np.array([b[name] - a[name] for a, b in zip(first, second)])  # (seeds, images)
        pairs = pairs[:, ~np.isnan(pairs).any(0)]
        count = pairs.shape[1]
        if count >= 2:
            image_variance = pairs.mean(0).var(ddof=1) / count
            value, margin = float(pairs.mean()), half_width(image_variance, pairs.mean(1).tolist())
            estimates[name] = Estimate(value, value - margin, value + margin, count)
    return estimates


def _read_image_values(run: Path, hits: Mapping[str, Mapping[str, float]]) -> dict[str, np.ndarray]:
    """Read {metric: one value per image} of a run, for the metrics that score single captions.

    hits: the result of `judge_runs` for this run; it is included as PHOTO_FOUND. A missing value is
    nan. The images are in the order of their ids as strings.
    """
    lines = read_lines(run / "result" / "test" / "per_caption.jsonl")
    lines = sorted(lines, key=lambda line: str(line["image_id"]))
    columns = {
        metric: [line.get(metric) for line in lines]
        for metric in lines[0].keys() - {"image_id", "caption"}
    }
    columns[PHOTO_FOUND.name] = [hits.get(str(line["image_id"])) for line in lines]
    return {
        metric: np.array(values, dtype=float)
        for metric, values in columns.items()
        if all(isinstance(value, (int, float, type(None))) for value in values)
    }


def _examples(seed: Path, variants: Sequence[Variant]) -> list[dict[str, Any]]:
    """Return the captions of every EXAMPLE_STEP-th photo by id, one dict per photo."""
    captions = {variant.label: read_captions(seed / variant.name) for variant in variants}
    ids = sorted(next(iter(captions.values())), key=lambda i: (isinstance(i, str), i))
    return [
        {"Photo": i, **{label: run_captions[i] for label, run_captions in captions.items()}}
        for i in ids[::EXAMPLE_STEP]
    ]


def _draw(rows: Sequence[comparison.Row], path: Path) -> str:
    """Draw the found photos and CIDEr against caption length; return a description in words."""
    descriptions = []
    with figure_context():
        figure = Figure(figsize=(9.2, 3.6), layout="constrained")
        for ax, vertical in zip(figure.subplots(1, len(VERTICAL_AXES)), VERTICAL_AXES):
            axes = plane.AxisPair(LENGTH_AXIS, vertical)
            points = plane.draw_rows(ax, axes, rows)
            plane.label_points(figure, ax, points)
            descriptions.append(plane.describe(axes, points))
        save_figure(figure, path)
    return "; ".join(descriptions)
