"""Writes cards: the README.md of weights or a data set, with metadata for the Hugging Face Hub."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

NAME = "README.md"
UNKNOWN = "unknown"  # the Hub's name for a licence that nobody stated
MARK = "<!-- generated; remove this line, and the file is never overwritten -->"
TASK = "image-to-text"
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def write_model_card(
    folder: Path, checkpoint: str, config: Mapping[str, Any], license: str, library: str
) -> None:
    """Write the card of exported weights, unless the folder has a card without MARK.

    checkpoint: the file that was exported. The card lists the scores of this checkpoint that are in
    the folder `result` beside it. config: the run's configuration, {} if unknown. license: the
    licence of the weights. library: the Hub's name of the library that loads the weights. Raises
    OSError if the card cannot be read or written.
    """
    from huggingface_hub import ModelCardData

    path = folder / NAME
    if path.exists() and not is_generated(path.read_text(encoding="utf-8")):
        return
    base = str(config.get("vlm") or config.get("pretrained") or "")
    results = list(_results(Path(checkpoint), config))
    data = ModelCardData(
        license=license,
        library_name=library,
        pipeline_tag=TASK,
        base_model=base if is_repository(base) else None,
        tags=["image-captioning", *(["lora"] if config.get("lora") else [])],
        model_name=folder.name if results else None,
        eval_results=results or None,
    )
    rows = {
        "base model": base or UNKNOWN,
        "licence": license,
        "data": described_data(config),
        "objective": described_objective(config),
    }
    text = card(folder.name, data.to_yaml(), rows)
    if results:
        text += f"\nScores of {results[0].dataset_split}, with 95 % intervals over its images:\n\n"
        text += "| metric | value | interval |\n|-|-|-|\n"
        for result in results:
            low, high = (result.metric_args or {}).get("interval_95", (math.nan, math.nan))
            shown = "-" if math.isnan(low) else f"{low:.4g} to {high:.4g}"
            text += f"| {result.metric_name} | {result.metric_value:.4g} | {shown} |\n"
    path.write_text(text, encoding="utf-8")


def license_of(folder: str) -> str:
    """Return the licence that the card in a base model's folder states, or UNKNOWN."""
    from huggingface_hub import ModelCard

    try:
        return str(ModelCard.load(Path(folder, NAME)).data.license or UNKNOWN)
    except Exception:  # there is no card, or YAML cannot read it
        return UNKNOWN


def is_repository(name: str) -> bool:
    """Return whether `name` can be a model's id on the Hub, to which a card may link."""
    return bool(_REPOSITORY.fullmatch(name)) and not Path(name).exists()


def is_generated(text: str) -> bool:
    """Return whether a card has MARK, which an author removes so that the card is kept."""
    return MARK in text


def card(title: str, metadata: str, rows: Mapping[str, str]) -> str:
    """Return the text of a card. metadata: YAML. rows: the rows of its table, {name: value}."""
    table = "".join(f"| {name} | {value} |\n" for name, value in rows.items())
    return f"---\n{metadata.strip()}\n---\n\n{MARK}\n\n# {title}\n\n| | |\n|-|-|\n{table}"


def described_data(config: Mapping[str, Any]) -> str:
    """Return the data set's name and the names of the training files, as one line."""
    names = config.get("train_file") or []
    names = [names] if isinstance(names, str) else names
    return ", ".join([str(config.get("dataset", UNKNOWN)), *(Path(name).name for name in names)])


def described_objective(config: Mapping[str, Any]) -> str:
    """Return the objective and the reward of a run, as one line."""
    found = {key: config[key] for key in ("objective", "reward") if config.get(key)}
    return "; ".join(f"{key}: {json.dumps(value)}" for key, value in found.items()) or UNKNOWN


def _results(checkpoint: Path, config: Mapping[str, Any]) -> Iterable[Any]:
    """Yield `EvalResult`s of the checkpoint on test, or on val if it was not evaluated on test.

    Results that the run has for another checkpoint are skipped.
    """
    from huggingface_hub import EvalResult

    for split in ("test", "val"):
        folder = checkpoint.parent / "result" / split
        evaluated = _read_json(folder / "run.json").get("checkpoint")
        if not evaluated or Path(evaluated).resolve() != checkpoint.resolve():
            continue
        for name, found in _read_json(folder / "metrics.json").get("metrics", {}).items():
            value = found["value"]
            if value is None or not math.isfinite(value):
                continue
            bounds = found["low"], found["high"]
            yield EvalResult(
                task_type=TASK,
                dataset_type=str(config.get("dataset", UNKNOWN)),
                dataset_name=described_data(config),
                dataset_split=split,
                metric_type=name.lower(),
                metric_name=name,
                metric_value=value,
                metric_args=None if None in bounds else {"interval_95": list(bounds)},
            )
        return


def _read_json(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file; {} if it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
