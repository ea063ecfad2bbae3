"""What the runs of several seeds come to: scores with intervals, differences from MLE, examples."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from benchmarks.real_photos.judge import HUMANS, answer_path
from benchmarks.real_photos.runs import JUDGE, Runs
from captioning.config.objectives import objective_name
from captioning.data.caption_files import read_predictions
from captioning.files.reading import parse_json, read_json, read_text
from captioning.metrics.bootstrap import Estimate, mean
from captioning.report.comparison import HUMANS as PEOPLE
from captioning.report.comparison import Comparison, Row
from captioning.report.comparison_table import in_markdown
from captioning.report.runs import kind_of, metrics_of
from captioning.sweep.over_seeds import half_width, over_seeds

FOUND = "found"  # captions that the judge finds likelier under their own photo than any other, %
EVERY = 30  # of the test photos by id, whose captions are shown


class Shown(NamedTuple):
    metric: str
    title: str
    digits: int
    factor: float = 1.0


SHOWN = (
    Shown("cap_len", "Words", 1),
    Shown("lex_div", "Distinct words", 0, 1000.0),
    Shown("Bleu_4", "BLEU-4", 3),
    Shown("METEOR", "METEOR", 3),
    Shown("CIDEr", "CIDEr", 3),
    Shown(FOUND, "Finds its photo, %", 1),
    Shown("CHAIRi", "CHAIRi, %", 1),
    Shown("object_recall", "Objects named, %", 1),
)


class Summary(NamedTuple):
    """rows: people first, then the variants; seeds: {variant: {metric: a value a seed}};
    differences: {variant: {metric: that from MLE}}; examples: [{image_id, variant: caption}]."""

    rows: list[Row]
    seeds: dict[str, dict[str, list[float]]]
    differences: dict[str, dict[str, Estimate]]
    examples: list[dict[str, Any]]

    def as_json(self) -> dict[str, Any]:
        def plain(estimates: Mapping[str, Estimate]) -> dict[str, Any]:
            return {name: vars(estimate) for name, estimate in estimates.items()}

        return {
            "scores": {row.label: plain(row.metrics) for row in self.rows},
            "seeds": self.seeds,
            "differences_from_mle": {n: plain(found) for n, found in self.differences.items()},
            "examples": self.examples,
        }


def summarise(runs: Runs, of_first: Comparison) -> Summary:
    """Put the seeds together. of_first: the first seed's runs, with scores of people."""
    human = of_first.human.metrics if of_first.human else {}
    people = over_seeds(
        [Row(PEOPLE, "humans", {}, {FOUND: _found(runs, s, HUMANS)[0]}) for s in runs.seeds], PEOPLE
    )
    rows, seeds, of_images = [people._replace(metrics={**human, **people.metrics})], {}, {}
    kinds = [kind_of(run.config) for run in of_first.runs]
    for variant, kind in zip(runs.variants, kinds):
        found = [
            Row(variant.label, kind, {}, _metrics(runs, seed, variant.name)) for seed in runs.seeds
        ]
        rows.append(over_seeds(found, variant.label))
        seeds[variant.label] = {
            name: [row.metrics[name].value for row in found] for name in rows[-1].metrics
        }
        of_images[variant.label] = [_of_images(runs, seed, variant.name) for seed in runs.seeds]
    mle = objective_name("mle")
    differences = {
        label: _differences(of_images[mle], each)
        for label, each in of_images.items()
        if mle in of_images and label != mle
    }
    return Summary(rows, seeds, differences, _examples(runs))


def _differences(
    first: Sequence[Mapping[str, np.ndarray]], second: Sequence[Mapping[str, np.ndarray]]
) -> dict[str, Estimate]:
    """Of the means over images and seeds, the same ones; 95 % intervals as in `over_seeds`."""
    found = {}
    for name in sorted(first[0].keys() & second[0].keys()):
        pairs = np.array([b[name] - a[name] for a, b in zip(first, second)])  # (seeds, images)
        pairs = pairs[:, ~np.isnan(pairs).any(0)]
        count = pairs.shape[1]
        if count < 2:
            continue
        of_images = pairs.mean(0).var(ddof=1) / count
        value, reach = float(pairs.mean()), half_width(of_images, pairs.mean(1).tolist())
        found[name] = Estimate(value, value - reach, value + reach, count)
    return found


def _metrics(runs: Runs, seed: int, name: str) -> dict[str, Estimate]:
    path = runs.of(seed, name) / "result" / "test" / "metrics.json"
    found = metrics_of(read_json(path)["metrics"], path)
    return {**found, FOUND: _found(runs, seed, name)[0]}


def _found(runs: Runs, seed: int, name: str) -> tuple[Estimate, dict[str, float]]:
    """The share of captions that find their photos, and 100 or 0 by image id."""
    places = read_json(answer_path(runs.of(seed, JUDGE), runs.of(seed, name)))["places"]
    hits = {image_id: 100.0 * (place == 1) for image_id, place in places.items()}
    return mean(list(hits.values())), hits


def _of_images(runs: Runs, seed: int, name: str) -> dict[str, np.ndarray]:
    """Each metric that a caption has, an image an entry, nan where one has none."""
    path = runs.of(seed, name) / "result" / "test" / "per_caption.jsonl"
    lines = [parse_json(line, path, n) for n, line in enumerate(read_text(path).splitlines(), 1)]
    lines.sort(key=lambda line: str(line["image_id"]))
    hits = _found(runs, seed, name)[1]
    columns: dict[str, list[Optional[float]]] = {
        FOUND: [hits.get(str(line["image_id"])) for line in lines]
    }
    for metric in lines[0].keys() - {"image_id", "caption"}:
        columns[metric] = [line.get(metric) for line in lines]
    numbers = (int, float, type(None))
    return {
        metric: np.array(values, dtype=float)
        for metric, values in columns.items()
        if all(isinstance(value, numbers) for value in values)
    }


def _examples(runs: Runs) -> list[dict[str, Any]]:
    """The captions of the first seed of every so manieth photo by id, whatever they say."""
    by_variant = {
        variant.label: read_predictions(runs.of(0, variant.name) / "result" / "test.json")
        for variant in runs.variants
    }
    ids = sorted(next(iter(by_variant.values())), key=lambda i: (isinstance(i, str), i))
    return [
        {"image_id": i, **{label: captions[i] for label, captions in by_variant.items()}}
        for i in ids[::EVERY]
    ]


def markdown(summary: Summary) -> str:
    """The table, and the examples below it."""
    present = [s for s in SHOWN if any(s.metric in row.metrics for row in summary.rows)]
    lines = []
    for row in summary.rows:
        seeds = summary.seeds.get(row.label, {})
        cells = [_cell(s, row.metrics.get(s.metric), seeds.get(s.metric, ())) for s in present]
        lines.append([row.label, *cells])
    table = in_markdown([s.title for s in present], lines)
    blocks = []
    for example in summary.examples:
        said = [f"- {label}: {text}" for label, text in example.items() if label != "image_id"]
        blocks.append("\n".join([f"Photo {example['image_id']}", "", *said]))
    return "\n".join([table, *(block + "\n" for block in blocks)])


def _cell(shown: Shown, estimate: Optional[Estimate], of_seeds: Sequence[float]) -> str:
    """The value and half its interval; without one, the lowest and the highest of the seeds."""

    def text(value: float) -> str:
        return f"{value * shown.factor:.{shown.digits}f}"

    if estimate is None:
        return "-"
    if estimate.low is not None:
        return f"{text(estimate.value)}±{text((estimate.high - estimate.low) / 2)}"
    ends = f" ({text(min(of_seeds))}-{text(max(of_seeds))})" if len(of_seeds) > 1 else ""
    return text(estimate.value) + ends
