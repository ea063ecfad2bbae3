"""Reads finished runs from their folders, and lists the settings in which they differ."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from pydantic import BaseModel, TypeAdapter, ValidationError

from captioning.captioners.registry import package_of
from captioning.config import Config, config_class, every_key, keys_of, load_config
from captioning.config.objectives import training_name, training_terms
from captioning.data.caption_files import Captions, read_predictions
from captioning.files.reading import read_json
from captioning.metrics.bootstrap import Estimate
from captioning.models.checkpoints import BEST
from captioning.runtime.errors import UserError
from captioning.training import selection
from captioning.training.run_log import read_log

EXCLUDED_KEYS = keys_of("machine")  # such as the device; they are not compared between runs


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
    training: dict[str, Any]  # run.json of the training: command, versions; {} if there is none
    scoring: dict[str, Any]  # run.json of the scoring; {} if there is none
    selected: Sequence[str] = ()  # lines about the selected epoch; empty without selected.json
    weights: Optional[str] = None  # the checkpoint of the captions; None: the folder's best

    @property
    def is_trained(self) -> bool:
        return self.kind != "weights"

    @property
    def has_loss_log(self) -> bool:
        return any("loss" in event for event in self.log)

    @property
    def objective(self) -> str:
        return training_name(self.config)

    @property
    def checkpoint(self) -> Optional[Path]:
        """The path of the checkpoint that made the captions; None if it no longer exists."""
        path = Path(self.weights) if self.weights else self.folder / BEST
        return path if path.exists() else None


def read_runs(folders: Sequence[Path], split: str) -> list[Run]:
    """Return one run per folder, in the order of `folders`, with unique labels.

    Raises UserError, for example if a folder has no run.
    """
    runs = [_read_run(folder, split) for folder in folders]
    folders = [folder.resolve() for folder in folders]
    check_unique(folders, "run")
    names = [folder.name for folder in folders]
    if len(set(names)) < len(names):
        common_folder = os.path.commonpath([str(folder.parent) for folder in folders])
        names = [folder.relative_to(common_folder).as_posix() for folder in folders]
    labels = make_unique([run.label for run in runs], names)
    return [replace(run, label=label) for run, label in zip(runs, labels)]


def objective_kind(config: Config) -> str:
    """Return the kind of objective, which decides the style in figures.

    It is "reward" if training uses a reward, "mixture" if it uses several objectives, and otherwise
    the name of the only objective, such as "mle".
    """
    parts = training_terms(config)
    if "reward" in parts:
        return "reward"
    return "mixture" if len(parts) > 1 else parts[0]


def training_title(config: Config) -> str:
    """Return the captioner's title and the objective, such as "LSTM, SMILE".

    If the captioner has no title, return only the objective.
    """
    title = package_of(config.model).title(config)
    return ", ".join(filter(None, (title, training_name(config))))


def _read_run(folder: Path, split: str) -> Run:
    """Return the run in a folder, with its captions of the split. Raises UserError."""
    training_config, scoring_config = _read_configs(folder, split)
    scoring = _read_record(folder / "result" / split / "run.json", dict[str, Any])
    foreign = _foreign_weights(folder, scoring_config, scoring)
    if training_config and not foreign:
        label, kind = training_title(training_config), objective_kind(training_config)
        config, selected = training_config, list(selection.summary(folder))
    else:
        label, kind = folder.resolve().name, "weights"
        config, selected = scoring_config, []
        if training_config:
            weights = Path(foreign)
            label = "/".join(weights.parts[-2:]) if weights.name == BEST else weights.name
    scores = recorded_scores(folder, split)
    return Run(
        folder=folder,
        label=label,
        kind=kind,
        config=config,
        scoring_config=scoring_config,
        captions=read_predictions(folder / "result" / f"{split}.json"),
        metrics=scores.metrics,
        skipped=scores.skipped,
        log=[] if foreign else list(read_log(folder / "log.jsonl")),
        training={} if foreign else _read_record(folder / "run.json", dict[str, Any]),
        scoring=scoring,
        selected=selected,
        weights=foreign,
    )


def _read_configs(folder: Path, split: str) -> tuple[Optional[Config], Config]:
    """Return the configurations of training, if any, and of scoring the split.

    Raises UserError if the folder has no run, or no captions of the split.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder: name the output_dir of a run")
    training_file = folder / "config.yaml"
    scoring_file = folder / "result" / split / "config.yaml"
    is_trained, is_scored = training_file.exists(), scoring_file.exists()
    if not (is_trained or is_scored):
        raise UserError(f"{folder}: not a run: it has no config.yaml; name the run's output_dir")
    if not (folder / "result" / f"{split}.json").exists():
        raise UserError(
            f"{folder}: no captions of split {split}: make them with python -m captioning.train "
            f"--config {training_file} --evaluate --eval_split {split}"
        )
    training_config = load_config(training_file) if is_trained else None
    return training_config, load_config(scoring_file) if is_scored else training_config


def _foreign_weights(
    folder: Path, scoring_config: Config, scoring: dict[str, Any]
) -> Optional[str]:
    """Return the checkpoint that made the captions; None if it is the folder's best or unknown.

    scoring: the content of the run.json that was written when the split was scored.
    """
    checkpoint = scoring.get("checkpoint")
    if not isinstance(checkpoint, str):
        return None
    path = Path(checkpoint)
    # A relative path starts at the folder where captioning.train was started. This program may have
    # been started elsewhere, so the recorded path is also compared with the recorded output_dir.
    if path.resolve() == (folder / BEST).resolve():
        return None
    return None if path == Path(scoring_config.output_dir, BEST) else checkpoint


class RecordedScores(BaseModel):
    """The content of a metrics.json.

    metrics: {metric: score}. skipped: {metric: why it could not be computed}.
    """

    metrics: dict[str, Estimate] = {}
    skipped: dict[str, str] = {}


def recorded_scores(run: Path, split: str) -> RecordedScores:
    """Return the scores of a run's captions of a split. run: the run's folder.

    Without a metrics.json, there are no scores. Raises UserError if the file is invalid.
    """
    return _read_record(run / "result" / split / "metrics.json", RecordedScores)


def _read_record(path: Path, kind: Any) -> Any:
    """Return the JSON object in a file as the type `kind`; an empty object if there is no file.

    Raises UserError if the file has another format.
    """
    try:
        return TypeAdapter(kind).validate_python(read_json(path) if path.exists() else {})
    except ValidationError:
        file_format = "captioning.train's format: caption and score the run again"
        raise UserError(f"{path}: not in {file_format}") from None


def check_unique(names: Sequence[Any], noun: str) -> None:
    """Raise UserError if a name is repeated. noun: the kind of thing named, such as "run"."""
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise UserError(f"{repeated} is named twice: name every {noun} once")


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

    def as_typed(found):
        return "python -m " + found[1].replace("/", ".").removesuffix(".__main__")

    commands = (record.get("command", "") for record in (run.training, run.scoring))
    program = r"^\S*python[\d.]* \S*?(captioning(?:/\w+)+)\.py\b"
    typed = dict.fromkeys(re.sub(program, as_typed, command) for command in commands)
    return list(filter(None, typed))


def recorded_versions(run: Run) -> str:
    """Return the recorded versions of Python and libraries, as one line of text."""
    record = run.training or run.scoring
    numbers = {"Python": record.get("python"), **record.get("versions", {})}
    return ", ".join(f"{name} {version}" for name, version in numbers.items() if version)


def differing_settings(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return {setting: its value in each run} for all settings that differ between the runs.

    Settings of generation and scoring are read from `scoring_config`, and other settings from
    `config`. If `scoring_config` and `config` of a run differ in such another setting NAME, there
    is also an entry "NAME, in scoring" with the values in `scoring_config`.
    """
    configs = [every_key(run.config) for run in runs]
    scoring_configs = [every_key(run.scoring_config) for run in runs]
    keys = config_class()
    found = {}
    for name in configs[0]:
        if name in EXCLUDED_KEYS:
            continue
        trained = [config[name] for config in configs]
        scored = [config[name] for config in scoring_configs]
        if name in (*keys_of("generation", keys), *keys_of("scoring", keys)):
            trained = scored
        found[name] = trained
        if scored != trained:
            found[f"{name}, in scoring"] = scored
    return {
        name: list(map(_format_value, values))
        for name, values in found.items()
        if any(value != values[0] for value in values)
    }


def _format_value(value: Any) -> str:
    """Return a string unchanged, and any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value)
