"""Reads finished runs from their folders, and lists the settings in which they differ."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from pydantic import BaseModel, ValidationError

from captioning.captioners.registry import package_of
from captioning.config import Config, keys_of, load_config
from captioning.config.objectives import training_name, training_terms
from captioning.data.caption_files import Captions, read_predictions
from captioning.files.reading import read_json
from captioning.metrics.intervals import Estimate
from captioning.models.checkpoints import BEST
from captioning.runtime.errors import UserError
from captioning.training import selection
from captioning.training.log import read_log

EXCLUDED_KEYS = keys_of("machine")  # such as the device; they are not compared between runs


class Record(BaseModel):
    """The content of a run.json: how a run was trained, or how a split was scored."""

    command: str = ""
    python: Optional[str] = None
    processes: int = 1
    versions: dict[str, Optional[str]] = {}  # of libraries; None if one is not installed
    checkpoint: Optional[str] = None  # only of a split: the weights that were scored


class RecordedScores(BaseModel):
    """The content of a metrics.json."""

    metrics: dict[str, Estimate] = {}
    skipped: dict[str, str] = {}  # {metric: why it could not be computed}


@dataclass(frozen=True)
class Run:
    """A run and its captions of one split.

    label: the run's unique name in the report. kind: the result of `objective_kind`, or "weights"
    if the captions were made with weights that were not trained in this folder.
    """

    folder: Path
    label: str
    kind: str
    config: Config  # used for training; with kind "weights", it is scoring_config
    scoring_config: Config  # used for captioning and scoring the split
    captions: Captions
    metrics: dict[str, Estimate]
    skipped: dict[str, str]  # {metric: why it could not be computed}
    log: list[dict[str, Any]]
    training: Record
    scoring: Record
    selected: Sequence[str]  # lines about the selected epoch; empty without selected.json
    weights: Optional[str]  # the checkpoint of the captions; None: the folder's best

    @property
    def is_trained(self) -> bool:
        return self.kind != "weights"

    @property
    def checkpoint(self) -> Optional[Path]:
        """The path of the checkpoint that made the captions; None if it no longer exists."""
        path = Path(self.weights or self.folder / BEST)
        return path if path.exists() else None


def read_runs(folders: Sequence[Path], split: str) -> list[Run]:
    """Return one run per folder, in the order of `folders`, with unique labels.

    Raises UserError, for example if a folder has no run.
    """
    runs = [_read_run(folder, split) for folder in folders]
    folders = [folder.resolve() for folder in folders]
    for folder in folders:
        if folders.count(folder) > 1:
            raise UserError(f"{folder} is named twice: name every run once")
    common_folder = os.path.commonpath([folder.parent for folder in folders])
    names = [folder.relative_to(common_folder).as_posix() for folder in folders]
    labels = make_unique([run.label for run in runs], names)
    return [replace(run, label=label) for run, label in zip(runs, labels)]


def objective_kind(config: Config) -> str:
    """Return the kind of objective, which decides the style in figures.

    It is "reward" if training uses a reward, "mixture" if it uses several objectives, and otherwise
    the name of the only objective, such as "mle".
    """
    first, *others = training_terms(config)
    return "mixture" if others and first != "reward" else first


def training_title(config: Config) -> str:
    """Return the captioner's title and the objective, such as "LSTM, SMILE".

    If the captioner has no title, return only the objective.
    """
    title = package_of(config.model).title(config)
    return ", ".join(filter(None, (title, training_name(config))))


def _read_run(folder: Path, split: str) -> Run:
    """Return the run in a folder, with its captions of the split.

    Raises UserError if the folder has no run, or no captions of the split.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder: name the output_dir of a run")
    result = folder / "result" / split
    own_file = folder / "config.yaml"
    files = [path for path in (own_file, result / "config.yaml") if path.exists()]
    if not files:
        raise UserError(f"{folder}: not a run: it has no config.yaml; name the run's output_dir")
    predictions = result.with_suffix(".json")
    if not predictions.exists():
        raise UserError(
            f"{folder}: no captions of split {split}: make them with python -m captioning.train "
            f"--config {files[0]} --evaluate --eval_split {split}"
        )
    config, scoring_config = load_config(files[0]), load_config(files[-1])
    scoring = _read_record(result / "run.json", Record)
    weights = _foreign_weights(folder, scoring_config, scoring)
    scores = _read_record(result / "metrics.json", RecordedScores)
    label, kind = training_title(config), objective_kind(config)
    if weights or not own_file.exists():
        path = Path(weights) if weights and own_file.exists() else folder.resolve()
        label = "/".join(path.parts[-2:]) if path.name == BEST else path.name
        config, kind = scoring_config, "weights"
    return Run(
        folder=folder,
        label=label,
        kind=kind,
        config=config,
        scoring_config=scoring_config,
        captions=read_predictions(predictions),
        metrics=scores.metrics,
        skipped=scores.skipped,
        log=[] if weights else list(read_log(folder / "log.jsonl")),
        training=Record() if weights else _read_record(folder / "run.json", Record),
        scoring=scoring,
        selected=[] if weights else list(selection.summary(folder)),
        weights=weights,
    )


def _foreign_weights(folder: Path, scoring_config: Config, scoring: Record) -> Optional[str]:
    """Return the checkpoint that made the captions; None if it is the folder's best or unknown."""
    if scoring.checkpoint is None:
        return None
    # A relative path starts at the folder where captioning.train was started. This program may have
    # been started elsewhere, so the recorded path is also compared with the recorded output_dir.
    best_paths = {(folder / BEST).resolve(), Path(scoring_config.output_dir, BEST)}
    path = Path(scoring.checkpoint)
    return None if {path, path.resolve()} & best_paths else scoring.checkpoint


def _read_record(path: Path, kind: type[BaseModel]) -> Any:
    """Return the content of a JSON file as a `kind`; without the file, one of defaults.

    Raises UserError if the file has another format.
    """
    try:
        return kind.model_validate(read_json(path) if path.exists() else {})
    except ValidationError:
        file_format = "captioning.train's format: caption and score the run again"
        raise UserError(f"{path}: not in {file_format}") from None


def make_unique(labels: Sequence[str], *alternatives: Sequence[str]) -> list[str]:
    """Return the labels, with a name in brackets appended to each label that is repeated.

    alternatives: lists with a name for each label. If labels are still repeated after the first
    list, names from the next list are appended, and so on.
    """
    for names in alternatives:
        labels = [
            f"{label} ({name})" if labels.count(label) > 1 else label
            for label, name in zip(labels, names)
        ]
    return labels


def recorded_commands(run: Run) -> list[str]:
    """Return the recorded commands that trained and scored the run, without duplicates.

    In a recorded command, the program is a path. Here it is a module, as a user types it: `python
    -m captioning.train ...`.
    """
    program = re.compile(r"^\S*python[\d.]* \S*?(captioning(?:/\w+)+?)(?:/__main__)?\.py\b")
    commands = dict.fromkeys([run.training.command, run.scoring.command])
    return [
        program.sub(lambda path: f"python -m {path[1].replace('/', '.')}", command)
        for command in commands
        if command
    ]


def recorded_versions(run: Run) -> str:
    """Return the recorded versions of Python and libraries, as one line of text."""
    record = run.training if run.training.python else run.scoring
    numbers = {"Python": record.python, **record.versions}
    return ", ".join(f"{name} {version}" for name, version in numbers.items() if version)


def differing_settings(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return {setting: its value in each run} for all settings that differ between the runs.

    The values are those in training. If the values in scoring are others, which differ, too, there
    is also an entry "NAME, in scoring".
    """
    trained = [run.config.model_dump() for run in runs]
    scored = [run.scoring_config.model_dump() for run in runs]
    values_of = {}
    for key in trained[0].keys() - set(EXCLUDED_KEYS):
        values_of[key] = [config[key] for config in trained]
        in_scoring = [config[key] for config in scored]
        if in_scoring != values_of[key]:
            values_of[f"{key}, in scoring"] = in_scoring
    return {
        name: [value if isinstance(value, str) else json.dumps(value) for value in values]
        for name, values in sorted(values_of.items())
        if any(value != values[0] for value in values)
    }
