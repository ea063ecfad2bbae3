"""The content of a report: the runs, the human captions, and the images that all runs captioned."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Optional, Union

from captioning.data import Sample, read_split, references
from captioning.data.caption_files import Captions, ImageId, References
from captioning.data.sources import known_annotation
from captioning.metrics.bootstrap import Estimate
from captioning.metrics.evaluator import build_evaluators, options_of
from captioning.metrics.facts import FactsOptions
from captioning.metrics.registry import COMPUTED, EVALUATORS, metric_of
from captioning.metrics.scoring import score
from captioning.report.runs import Run, read_runs
from captioning.runtime.errors import UserError
from captioning.runtime.registry import load
from captioning.scenes.make import read_scenes
from captioning.scenes.world import Scene
from captioning.training.split_evaluation import metric_settings

HUMANS = "Humans"


class Row(NamedTuple):
    """A row of the comparison that is no run: human captions, or the mean of several runs.

    A run is a row, too: it has the same attributes.
    """

    label: str
    kind: str  # "humans", or the kind of a run
    captions: Captions
    metrics: dict[str, Estimate]


@dataclass(frozen=True)
class Comparison:
    """The runs of a report and the data they share.

    - image_ids: the images that all runs captioned
    - samples, references: of these images, in the split's order; empty if the data set cannot be
      read
    - captioned: the number of images that all runs captioned
    - whole_split: whether all images of the split were captioned
    - missing: one sentence for each missing part of the report
    """

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
        """Whether images have further references besides the held-out caption."""
        return any(len(group) > 1 for group in self.references.values())

    @property
    def rows(self) -> list[Union[Row, Run]]:
        """The human captions, if any, then the runs in the order given."""
        return [*([self.human] if self.human else []), *self.runs]

    def image_path(self, image_id: ImageId) -> Optional[Path]:
        sample = self.samples.get(image_id)
        return sample and Path(self.runs[0].scored_with.image_root, sample.image)


def compare(folders: Sequence[Path], split: str = "test") -> Comparison:
    """Read the runs in `folders` and score the human captions. Raises UserError."""
    runs = read_runs(folders, split)
    _refuse_other_data(runs, split)
    captioned = [i for i in runs[0].captions if all(i in run.captions for run in runs)]
    if not captioned:
        raise UserError(
            f"no image of split {split} was captioned by all runs: compare runs of one data set"
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
            "and the human captions are from these, the runs' scores from all images."
        )
    if len(samples) < size:
        missing.append(f"Only {len(samples)} of the split's {size} images were captioned.")
    texts = {i: list(texts[i]) for i in samples}
    human = _human_row(texts, samples.values(), runs, missing)
    scenes = {}
    try:
        of_runs = (run.scored_with for run in runs)
        facts = next((each for each in of_runs if getattr(each, "facts_file", None)), None)
        if facts:
            scenes = read_scenes(Path(FactsOptions.from_config(facts)["facts_file"]))
    except UserError as error:
        missing.append(
            f"The contents of the images could not be read, so no word is marked: {error}."
        )
    whole = len(samples) == size == count
    ids = list(samples)
    return Comparison(split, runs, ids, samples, texts, human, scenes, missing, count, whole)


def _refuse_other_data(runs: Sequence[Run], split: str) -> None:
    """Raise UserError if a run was scored on other data than the first run."""

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
    """A sentence for each run that captioned more images than the others, or has no scores."""
    for run in runs:
        if more := len(run.captions) - captioned:
            yield (
                f"{run.label} captioned {more} images that another run did not; its scores are "
                "over these, too, while the examples are not."
            )
        if not run.metrics:
            yield f"{run.label} has no scores of this split."


def held_out(references: Mapping[ImageId, Sequence[str]]) -> tuple[Captions, References]:
    """Hold out one caption of each image; return the held-out captions and the others.

    Of image i with k captions, caption i mod k is held out, so that each annotator gets a turn.
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
    """The row of the held-out captions, with the metrics that the runs have."""
    captions, others = held_out(texts)
    alone = not others
    if alone:
        missing.append(
            "Each image has only one human caption, so it has no references to score it."
        )
        others = {image_id: [caption] for image_id, caption in captions.items()}
    wanted = {name for run in runs for name in run.metrics}
    if alone:  # otherwise a caption would be scored against itself
        wanted = {name for name in wanted if not metric_of(name).references}
    settings = metric_settings(runs[0].scored_with, samples, "cpu")
    built = []
    for name in dict.fromkeys(name for run in runs for name in run.scored_with.metrics):
        names = wanted.intersection(COMPUTED[name])
        if load(EVALUATORS[name]).costly or not names:
            continue
        # Uses the options of the run with most metrics.
        run = max(
            (run for run in runs if name in run.scored_with.metrics),
            key=lambda run: len(names & run.metrics.keys()),
        )
        try:
            built += build_evaluators([name], settings, **options_of([name], run.scored_with))
        except UserError as error:
            missing.append(f"Human captions could not be scored: {error}.")
    scores = score({image_id: captions[image_id] for image_id in others}, others, built)
    skipped = sorted(wanted.intersection(scores.skipped))
    for reason in dict.fromkeys(scores.skipped[name] for name in skipped):
        missing.append(f"Not all scores of human captions could be computed: {reason}.")
    metrics = {name: estimate for name, estimate in scores.metrics.items() if name in wanted}
    return Row(HUMANS, "humans", captions, metrics)
