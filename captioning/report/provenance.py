"""How a run came about: commands, versions, and the settings in which the runs differ."""

from collections.abc import Sequence
from typing import Any

from captioning.config import keys_of
from captioning.report.runs import Run, plain_command

NOT_A_SETTING = keys_of("machine")  # the page says that they are left out
OF_SCORING = [*keys_of("generation"), *keys_of("scoring")]


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
    """Each setting that is not the same in all runs, with its value in each.

    Of those of training that were others in scoring, the latter stand under "NAME, in scoring".
    """
    values = [settings(run) for run in runs]
    scored = [run.scored_with.model_dump() for run in runs]
    found = {}
    for name in values[0]:
        trained = [each[name] for each in values]
        then = [each[name] for each in scored]
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
