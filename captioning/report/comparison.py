"""Collects the data of a report: runs, human captions, and the images that all runs captioned."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Optional, Union

from captioning.data.annotations import Sample
from captioning.data.caption_files import Captions, ImageId, References
from captioning.data.sources import known_annotation, read_split, references
from captioning.metrics.base import build_evaluators, evaluator_classes
from captioning.metrics.intervals import Estimate
from captioning.metrics.options import option_files
from captioning.metrics.scoring import remarks, score
from captioning.metrics.tokenizer import UNSPACED
from captioning.report.runs import Run, read_runs
from captioning.runtime.errors import UserError
from captioning.scenes.world import Scene, read_scenes
from captioning.training.validation import metric_settings


class Row(NamedTuple):
    """A row of the comparison: human captions, or the mean of several runs.

    A single `Run` is itself a row, because it has the same attributes.
    """

    label: str
    kind: str  # "humans", or the kind of a run
    captions: Captions
    metrics: dict[str, Estimate]


@dataclass(frozen=True)
class Comparison:
    """The runs of a report and the data they share.

    The data set counts as missing if it cannot be read or has none of the captioned images.

    - image_ids: the images that all runs captioned and that the data set has; if the data set is
      missing, all images that all runs captioned
    - num_captioned: the number of images that all runs captioned
    - samples, references: {image id: sample or human captions} of `image_ids`, in the split's
      order; empty if the data set is missing
    - human: the row of human captions; None if the data set is missing
    - scenes: {image id: scene} of images made by `captioning.scenes`; the facts of these images are
      known, so the report marks the true and wrong words of captions
    - missing: sentences about what is missing in the report
    """

    split: str
    runs: list[Run]
    image_ids: list[ImageId]
    num_captioned: int
    missing: list[str]
    samples: dict[ImageId, Sample] = field(default_factory=dict)
    references: References = field(default_factory=dict)
    human: Optional[Row] = None
    scenes: dict[ImageId, Scene] = field(default_factory=dict)

    @property
    def rows(self) -> list[Union[Row, Run]]:
        """The human captions, if any, then the runs in the order given."""
        return [self.human, *self.runs] if self.human else self.runs

    def image_path(self, image_id: ImageId) -> Optional[Path]:
        """Return the path of an image's file; None if the image is not in `samples`."""
        sample = self.samples.get(image_id)
        return sample and Path(self.runs[0].scoring_config.image_root, sample.image)


def read_comparison(folders: Sequence[Path], split: str = "test") -> Comparison:
    """Read the runs in `folders`, score the human captions, and return both.

    Raises UserError if a folder has no run, or if the runs do not share data.
    """
    runs = read_runs(folders, split)
    _check_same_data(runs, split)
    captioned = [i for i in runs[0].captions if all(i in run.captions for run in runs)]
    count = len(captioned)
    if not captioned:
        raise UserError(
            f"no image of split {split} was captioned by all runs: compare runs of one data set"
        )
    missing = list(_describe_gaps(runs, count))
    config = runs[0].scoring_config
    metrics = {name for run in runs for name in run.metrics}
    has_corpus = bool(getattr(config, "cider_df", None))
    missing += (f"{line}." for line in remarks(metrics, count, has_corpus))
    if config.language in UNSPACED:
        missing.append(f"Words are characters in scores and figures (language: {config.language}).")
    comparison = Comparison(split, runs, captioned, count, missing)
    try:
        split_samples = read_split(config, split)
        texts = references(config, split, split_samples)
    except UserError as error:
        missing.append(f"The data set could not be read, so there are no human captions: {error}.")
        return comparison
    captioned = set(captioned)
    samples = {s.image_id: s for s in split_samples if s.image_id in captioned}
    if not samples:
        missing.append(f"The data set's {split} split has none of the captioned images.")
        return comparison
    if not len(samples) == count == len(split_samples):
        missing.append(
            f"All runs captioned {count} images, and the {split} split has {len(split_samples)}. "
            f"The examples and the human captions cover the {len(samples)} in both, the runs' "
            "scores all captioned images."
        )
    texts = {i: list(texts[i]) for i in samples}
    return replace(
        comparison,
        image_ids=list(samples),
        samples=samples,
        references=texts,
        human=_human_row(texts, samples.values(), runs, missing),
        scenes=_read_known_scenes(runs, missing),
    )


def _read_known_scenes(runs: Sequence[Run], missing: list[str]) -> dict[ImageId, Scene]:
    """Return the scenes of the first facts_file among the runs; {} if no run has one.

    Appends a sentence to `missing` if the file cannot be read.
    """
    try:
        for run in runs:
            for path in option_files(run.scoring_config, "facts_file"):
                return read_scenes(path)
    except UserError as error:
        missing.append(
            f"The contents of the images could not be read, so no word is marked: {error}."
        )
    return {}


def _check_same_data(runs: Sequence[Run], split: str):
    """Raise UserError if the runs were scored with different settings for the split's data."""

    def data_settings(run):
        config = run.scoring_config
        default_file = known_annotation(config.dataset, split)
        return {
            "dataset": config.dataset,
            "ann_root": Path(config.ann_root).resolve(),
            f"{split}_file": getattr(config, f"{split}_file") or default_file,
            "split": config.split and (config.train_file, sorted(config.split.items())),
            "image_root": Path(config.image_root).resolve(),
            "language": config.language,
        }

    expected = data_settings(runs[0])
    for run in runs[1:]:
        for key, value in data_settings(run).items():
            if value != expected[key]:
                raise UserError(
                    f"{runs[0].folder} and {run.folder} were scored on different data sets: {key} "
                    f"is {expected[key]} and {value}; compare runs of one data set"
                )


def _describe_gaps(runs: list[Run], captioned: int) -> Iterator[str]:
    """Yield sentences about runs that captioned images which others did not, or have no scores.

    captioned: the number of images that all runs captioned.
    """
    for run in runs:
        if not run.metrics:
            yield f"{run.label} has no scores of this split."
        elif num_extra := len(run.captions) - captioned:
            yield (
                f"{run.label} captioned {num_extra} images that another run did not; its scores "
                "include them, the examples and the human captions do not."
            )


def hold_out(references: Mapping[ImageId, Sequence[str]]) -> tuple[Captions, References]:
    """Hold out one human caption per image as a prediction; the others are its references.

    references: {image id: all human captions}. If image number i has k captions, caption i mod k is
    held out, so that the annotators alternate. The references have no entry for an image with a
    single caption.
    """
    others = {image_id: list(group) for image_id, group in references.items()}
    captions = {image: group.pop(i % len(group)) for i, (image, group) in enumerate(others.items())}
    return captions, {image_id: group for image_id, group in others.items() if group}


def _human_row(
    texts: References, samples: Iterable[Sample], runs: list[Run], missing: list[str]
) -> Row:
    """Return the row of human captions: the captions from `hold_out`, with their scores.

    The metrics are those of the runs, except of evaluators whose calls may cost money. texts:
    {image id: human captions}. Appends sentences to `missing` about scores that could not be
    computed.
    """
    captions, others = hold_out(texts)
    wanted = {name for run in runs for name in run.metrics}
    if not others:
        missing.append(
            "Each image has only one human caption, so it has no references to score it."
        )
    elif num_single := len(texts) - len(others):
        missing.append(
            f"{num_single} of the {len(texts)} images have only one human caption; the scores of "
            "human captions leave them out."
        )
    settings = metric_settings(runs[0].scoring_config, samples, "cpu")
    evaluators = []
    names = (name for run in runs for name in run.scoring_config.metrics)
    for name, kind in evaluator_classes(names).items():
        computed = wanted.intersection(metric.name for metric in kind.metrics)
        if kind.costly or not computed:
            continue
        # Use the options of the run that has most of this evaluator's metrics.
        named = [run for run in runs if name in run.scoring_config.metrics]
        run = max(named, key=lambda run: len(computed & run.metrics.keys()))
        try:
            evaluators += build_evaluators([name], settings, run.scoring_config)
        except UserError as error:
            missing.append(f"Human captions could not be scored: {error}.")
    scored = {image_id: captions[image_id] for image_id in others or captions}
    scores = score(scored, others or None, evaluators)
    for reason in sorted({scores.skipped[name] for name in wanted & scores.skipped.keys()}):
        missing.append(f"Not all scores of human captions could be computed: {reason}.")
    metrics = {name: estimate for name, estimate in scores.metrics.items() if name in wanted}
    return Row("Humans", "humans", captions, metrics)
