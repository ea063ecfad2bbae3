"""How a run came about: commands, versions, and the settings in which the runs differ."""

from collections.abc import Sequence
from typing import Any

from captioning.report.runs import Run, plain_command
from decoding import DecodingSettings

NOT_A_SETTING = {"output_dir"}  # two runs never share it, and nothing follows from it
OF_SCORING = {*DecodingSettings.__dataclass_fields__, "metrics", "spice", "facts_file"}


def origin(run: Run) -> list[str]:
    """The commands that trained and scored the run, each once; empty where none is recorded."""
    commands = [plain_command(record) for record in (run.training, run.scoring)]
    return list(dict.fromkeys(command for command in commands if command))


def versions(run: Run) -> str:
    """What the run was made with, in one line, "" where that is not recorded."""
    record = run.training or run.scoring
    found = {"Python": record.get("python"), **record.get("versions", {})}
    return ", ".join(f"{name} {version}" for name, version in found.items() if version)


def settings(run: Run) -> dict[str, Any]:
    """The run's settings; those of scoring as they were when the captions were made."""
    scored = run.scored_with.model_dump()
    return {
        name: scored[name] if name in OF_SCORING else value
        for name, value in run.config.model_dump().items()
        if name not in NOT_A_SETTING
    }


def differing(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Each setting that is not the same in all runs, with its value in each."""
    values = [settings(run) for run in runs]
    return {
        name: [_text(each.get(name)) for each in values]
        for name in values[0]
        if any(each.get(name) != values[0][name] for each in values)
    }


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
