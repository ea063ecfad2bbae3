"""Reads finished runs from their folders."""

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from pydantic import TypeAdapter, ValidationError

from captioning.captioners.registry import package_of
from captioning.config import Config, config_class, every_key, keys_of, load_config
from captioning.config.objectives import training_name, training_terms
from captioning.data.caption_files import Captions, read_predictions
from captioning.files.reading import read_json
from captioning.metrics.bootstrap import Estimate
from captioning.models.checkpoints import BEST
from captioning.runtime.errors import UserError
from captioning.training.run_log import read_log
from captioning.training.selection import read_record

NOT_A_SETTING = keys_of("machine")  # keys that the page leaves out, as it says


@dataclass(frozen=True)
class Run:
    """A run and its captions of one split.

    label: unique name in the page. kind: the objective's name, "mixture" for several objectives,
    "reward", or "weights" for weights that were not trained in this folder.
    """

    folder: Path
    label: str
    kind: str
    config: Config  # of the training
    scored_with: Config  # of the captions of the split
    captions: Captions
    metrics: dict[str, Estimate]
    skipped: dict[str, str]  # {metric: why it could not be computed}
    log: list[dict[str, Any]]
    training: dict[str, Any]  # run.json: command, versions; empty if there is none
    scoring: dict[str, Any]
    selected: Optional[dict[str, Any]] = None  # the record of `captioning.training.selection`
    weights: Optional[str] = None  # the weights that made the captions, if not the folder's best

    @property
    def trained(self) -> bool:
        return self.kind != "weights"

    @property
    def objective(self) -> str:
        return training_name(self.config)

    @property
    def checkpoint(self) -> Optional[Path]:
        """The weights that made the captions, if the file still exists."""
        path = Path(self.weights) if self.weights else self.folder / BEST
        return path if path.exists() else None


def read_runs(folders: Sequence[Path], split: str) -> list[Run]:
    """The runs in `folders`, in order. Raises UserError for a folder that is not a run."""
    if not folders:
        raise UserError("no run to report: name one or more run folders")
    folders = [Path(folder) for folder in folders]
    runs = [_read_run(folder, split) for folder in folders]
    folders = [folder.resolve() for folder in folders]
    refuse_twice(folders, "run")
    names = [folder.name for folder in folders]
    if len(set(names)) < len(names):
        above = os.path.commonpath([str(folder.parent) for folder in folders])
        names = [folder.relative_to(above).as_posix() for folder in folders]
    labels = distinct([run.label for run in runs], names)
    return [replace(run, label=label) for run, label in zip(runs, labels)]


def kind_of(config: Config) -> str:
    """The objective's name, such as "mle", or "mixture" for several objectives."""
    parts = training_terms(config)
    return "reward" if "reward" in parts else "mixture" if len(parts) > 1 else parts[0]


def trained_name(config: Config) -> str:
    """The objective, preceded by the captioner's title if it has one: "LSTM, SMILE"."""
    title = package_of(config.model).title(config)
    return ", ".join(filter(None, (title, training_name(config))))


def plain_command(record: dict[str, Any]) -> Optional[str]:
    """The command of a run.json as a user types it: `python -m captioning.train ...`."""
    command = record.get("command")
    if not command:
        return None
    program, *arguments = shlex.split(command)
    module = re.search(r"(captioning(?:/\w+)+)\.py$", arguments[0]) if arguments else None
    if not module or not re.fullmatch(r"python[\d.]*", Path(program).name):
        return command
    name = module[1].replace("/", ".").removesuffix(".__main__")
    return shlex.join(["python", "-m", name, *arguments[1:]])


def _read_run(folder: Path, split: str) -> Run:
    result = folder / "result" / split
    results_file = folder / "result" / f"{split}.json"
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder: name the output_dir of a run")
    trained = (folder / "config.yaml").exists()
    if not trained and not (result / "config.yaml").exists():
        raise UserError(f"{folder}: not a run: it has no config.yaml; name the run's output_dir")
    if not results_file.exists():
        raise UserError(
            f"{folder}: no captions of split {split}: make them with python -m captioning.train "
            f"--config {folder / 'config.yaml'} --evaluate --eval_split {split}"
        )
    own = load_config(folder / "config.yaml") if trained else None
    scored = load_config(result / "config.yaml") if (result / "config.yaml").exists() else own
    scoring = _json(result / "run.json")
    foreign = _foreign_weights(folder, scored, scoring)
    label = folder.resolve().name
    if trained and foreign:
        weights, trained = Path(foreign), False
        label = "/".join(weights.parts[-2:]) if weights.name == BEST else weights.name
    config = own if trained else scored
    scores = _json(result / "metrics.json")
    return Run(
        folder=folder,
        label=trained_name(config) if trained else label,
        kind=kind_of(config) if trained else "weights",
        config=config,
        scored_with=scored,
        captions=read_predictions(results_file),
        metrics=metrics_of(scores.get("metrics", {}), result / "metrics.json"),
        skipped=_validated(scores.get("skipped", {}), dict[str, str], result / "metrics.json"),
        log=[] if foreign else list(read_log(folder / "log.jsonl")),
        training={} if foreign else _json(folder / "run.json"),
        scoring=scoring,
        selected=read_record(folder) if trained else None,
        weights=foreign,
    )


def _foreign_weights(folder: Path, scored: Config, scoring: dict[str, Any]) -> Optional[str]:
    """The recorded checkpoint; None if it is the folder's best."""
    checkpoint = scoring.get("checkpoint")
    if not isinstance(checkpoint, str):
        return None
    path = Path(checkpoint)
    own = path.resolve() == (folder / BEST).resolve()
    # A relative path is relative to the folder where the program was started.
    return None if own or path == Path(scored.output_dir, BEST) else checkpoint


def metrics_of(entries: Any, path: Path) -> dict[str, Estimate]:
    """The "metrics" of a metrics.json. Intervals are optional.

    path: the file, named in the UserError about a malformed entry.
    """
    return _validated(entries, dict[str, Estimate], path)


def _json(path: Path) -> dict[str, Any]:
    return _validated(read_json(path), dict[str, Any], path) if path.exists() else {}


def _validated(value: Any, kind: Any, path: Path) -> Any:
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError:
        expected = "captioning.train's format: caption and score the run again"
        raise UserError(f"{path}: not in {expected}") from None


def refuse_twice(named: Sequence[Any], what: str) -> None:
    """Raise UserError if something is named twice. what: what the user names."""
    twice = next((each for each in named if named.count(each) > 1), None)
    if twice is not None:
        raise UserError(f"{twice} is named twice: name every {what} once")


def distinct(labels: Sequence[str], *places: Sequence[str]) -> list[str]:
    """Make labels unique: repeated labels get a place appended, from the first list that helps."""
    for names in places:
        labels = [
            f"{label} ({name})" if labels.count(label) > 1 else label
            for label, name in zip(labels, names)
        ]
    return labels


def origin(run: Run) -> list[str]:
    """The recorded commands that trained and scored the run, without duplicates."""
    commands = [plain_command(record) for record in (run.training, run.scoring)]
    return list(dict.fromkeys(command for command in commands if command))


def versions(run: Run) -> str:
    """The recorded versions of Python and libraries, in one line."""
    record = run.training or run.scoring
    found = {"Python": record.get("python"), **record.get("versions", {})}
    return ", ".join(f"{name} {version}" for name, version in found.items() if version)


def differing(runs: Sequence[Run]) -> dict[str, list[str]]:
    """{setting: its value in each run} of all settings that differ between the runs.

    For generation and scoring, the settings used for the captions count. Other settings that were
    changed after training appear again as "NAME, in scoring".
    """
    found = {}
    configs = [every_key(run.config) for run in runs]
    scored = [every_key(run.scored_with) for run in runs]
    of_scoring = [
        key for role in ("generation", "scoring") for key in keys_of(role, config_class())
    ]
    for name in (name for name in configs[0] if name not in NOT_A_SETTING):
        then = [config[name] for config in scored]
        trained = then if name in of_scoring else [config[name] for config in configs]
        if any(value != trained[0] for value in trained):
            found[name] = [_text(value) for value in trained]
        if then != trained and any(value != then[0] for value in then):
            found[f"{name}, in scoring"] = [_text(value) for value in then]
    return found


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_text(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
