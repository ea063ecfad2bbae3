"""What a report compares: the runs, the people, and the images that they all captioned."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Optional

from captioning.data import Sample, read_split, references
from captioning.data.caption_files import Captions, ImageId, References
from captioning.data.sources import known_annotation
from captioning.metrics.bootstrap import Estimate
from captioning.metrics.registry import EVALUATORS, build_evaluators
from captioning.metrics.scoring import score
from captioning.report.runs import Run, read_runs
from captioning.runtime.errors import UserError
from captioning.scenes.make import read_scenes
from captioning.scenes.world import Scene
from captioning.training.split_evaluation import metric_settings, object_settings

HUMANS = "Humans"


class Row(NamedTuple):
    """A line of the comparison: people or a run."""

    label: str
    kind: str  # "humans" or a run's
    captions: Captions
    metrics: dict[str, Estimate]


@dataclass(frozen=True)
class Comparison:
    """image_ids: those that every run captioned; samples and references: the images and human
    captions of these, in the split's order, both empty where the data set cannot be read;
    captioned: how many images every run captioned; whole_split: whether these are the split;
    missing: a sentence for each thing that could not be had."""

    split: str
    runs: list[Run]
    image_ids: list[ImageId]
    samples: dict[ImageId, Sample] = field(default_factory=dict)
    references: References = field(default_factory=dict)
    human: Optional[Row] = None
    scenes: dict[ImageId, Scene] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    captioned: int = 0
    whole_split: bool = True

    @property
    def has_other_captions(self) -> bool:
        """Whether a caption that is held out leaves others to score it against."""
        return any(len(group) > 1 for group in self.references.values())

    @property
    def rows(self) -> list[Row]:
        """The people, where there are any, then the runs in the order given."""
        runs = [Row(run.label, run.kind, run.captions, run.metrics) for run in self.runs]
        return [self.human, *runs] if self.human else runs

    def image_path(self, image_id: ImageId) -> Optional[Path]:
        sample = self.samples.get(image_id)
        return sample and Path(self.runs[0].scored_with.image_root, sample.image)


def compare(folders: Sequence[Path], split: str = "test") -> Comparison:
    """Read the runs in `folders` and score the people. Raises UserError for what is no run."""
    runs = read_runs(folders, split)
    _refuse_other_data(runs, split)
    captioned = [i for i in runs[0].captions if all(i in run.captions for run in runs)]
    if not captioned:
        raise UserError(
            f"the runs captioned no image in common on split {split}: compare runs of one data set"
        )
    count = len(captioned)
    missing = list(_gaps(runs, count))
    unread = Comparison(split, runs, captioned, missing=missing, captioned=count)
    config = runs[0].scored_with
    try:
        of_split = read_split(config, split)
        texts = references(config, split, of_split)
        samples = {sample.image_id: sample for sample in of_split}
    except UserError as error:
        missing.append(f"The data set could not be read, so there are no human captions: {error}.")
        return unread
    wanted, size = set(captioned), len(samples)
    samples = {i: sample for i, sample in samples.items() if i in wanted}
    if not samples:
        missing.append(f"The data set's {split} split has none of the captioned images.")
        return unread
    if len(samples) < count:
        missing.append(
            f"The data set has only {len(samples)} of the {count} captioned images; the examples "
            "and the human captions are of these, the runs' scores of all."
        )
    if len(samples) < size:
        missing.append(f"Only {len(samples)} of the split's {size} images were captioned.")
    texts = {i: list(texts[i]) for i in samples}
    human = _human_row(texts, samples.values(), runs, missing)
    scenes = {}
    try:
        if facts_path := _facts_path(runs):
            scenes = read_scenes(facts_path)
    except UserError as error:
        missing.append(f"What the images show could not be read, so no word is marked: {error}.")
    whole = len(samples) == size == count
    ids = list(samples)
    return Comparison(split, runs, ids, samples, texts, human, scenes, missing, count, whole)


def _refuse_other_data(runs: Sequence[Run], split: str) -> None:
    """Raises UserError where a run's captions were scored on other data than the first's."""

    def data_of(run: Run) -> dict[str, str]:
        config = run.scored_with
        known = known_annotation(config.dataset, split)
        return {
            "dataset": config.dataset,
            "ann_root": str(Path(config.ann_root).resolve()),
            f"{split}_file": str(getattr(config, f"{split}_file") or known),
            "split": str(config.split and (config.train_file, sorted(config.split.items()))),
            "image_root": str(Path(config.image_root).resolve()),
        }

    for run in runs[1:]:
        for (key, expected), value in zip(data_of(runs[0]).items(), data_of(run).values()):
            if value != expected:
                raise UserError(
                    f"{runs[0].folder} and {run.folder} were scored on different data sets: {key} "
                    f"is {expected} and {value}; compare runs of one data set"
                )


def _gaps(runs: list[Run], captioned: int) -> Iterator[str]:
    """A sentence for each thing that a run has more or less of than the others."""
    for run in runs:
        if more := len(run.captions) - captioned:
            yield (
                f"{run.label} captioned {more} images that another run did not; its scores are "
                "over these, too, while the examples are not."
            )
        if not run.metrics:
            yield f"{run.label} has no scores of this split."


def held_out(references: Mapping[ImageId, Sequence[str]]) -> tuple[Captions, References]:
    """One caption of each image, and the other captions of the images that have others.

    Image i gives up caption i mod k of its k, so that every annotator has their turn.
    """
    captions: Captions = {}
    others: References = {}
    for i, (image_id, group) in enumerate(references.items()):
        chosen = i % len(group)
        captions[image_id] = group[chosen]
        if len(group) > 1:
            others[image_id] = [*group[:chosen], *group[chosen + 1 :]]
    return captions, others


def _human_row(
    texts: References, samples: Iterable[Sample], runs: list[Run], missing: list[str]
) -> Row:
    """The held-out captions with the metrics that the runs have."""
    captions, others = held_out(texts)
    alone = not others
    if alone:
        missing.append("Each image has one human caption, so people are not scored by references.")
        others = {image_id: [caption] for image_id, caption in captions.items()}
    wanted = {name for run in runs for name in run.metrics}
    evaluators = dict.fromkeys(name for run in runs for name in run.scored_with.metrics)
    evaluators = [name for name in evaluators if not EVALUATORS[name].costly]
    configs = [run.scored_with for run in runs]
    settings = replace(
        metric_settings(configs[0], samples, "cpu"),
        spice="SPICE" in wanted,
        facts_file=_facts_path(runs),
        # As the first that knows of objects.
        **next((object_settings(config) for config in configs if config.objects_file), {}),
    )
    try:
        built = build_evaluators(evaluators, settings) if wanted else []
    except UserError as error:
        missing.append(f"People could not be scored: {error}.")
        return Row(HUMANS, "humans", captions, {})
    if alone:  # a caption would be scored against itself
        wanted -= {name for evaluator in built for name in evaluator.reference_metrics}
    built = [evaluator for evaluator in built if wanted.intersection(evaluator.names)]
    scores = score({image_id: captions[image_id] for image_id in others}, others, built)
    skipped = sorted(wanted.intersection(scores.skipped))
    for reason in dict.fromkeys(scores.skipped[name] for name in skipped):
        missing.append(f"Not all scores of people could be computed: {reason}.")
    metrics = {name: estimate for name, estimate in scores.metrics.items() if name in wanted}
    return Row(HUMANS, "humans", captions, metrics)


def _facts_path(runs: list[Run]) -> Optional[Path]:
    """That of the first run that knows of facts."""
    return next((path for run in runs if (path := run.scored_with.facts_path)), None)
