"""What a run minimises, in words."""

from dataclasses import asdict

from captioning.config.config import Config
from smile import Objective, parse_objective
from smile.alternatives import ALTERNATIVES
from smile.mixture import scores_first_token

NAMES = {
    **{"mle": "MLE", "smile": "SMILE", "random": "random subset", "reverse": "reverse subset"},
    **{name: loss.title for name, loss in ALTERNATIVES.items()},
}


def objective_name(spec) -> str:
    """ "MLE", "SMILE", "focal (gamma 1)" or, of a mixture, "MLE+SMILE 0.3:0.7"."""
    weights = parse_objective(spec)
    ordered = [name for name in NAMES if name in weights]
    names = "+".join(NAMES[name] + _parameters(spec, name) for name in ordered)
    if len(ordered) == 1:
        return names
    return f"{names} {':'.join(f'{weights[name]:g}' for name in ordered)}"


def _parameters(spec, name: str) -> str:
    """Those that a configuration gives one objective, as they stand behind its name."""
    given = {} if isinstance(spec, str) else spec[name]
    given = given if isinstance(given, dict) else {}
    told = [f"{key} {value}" for key, value in given.items() if key != "weight"]
    return f" ({', '.join(told)})" if told else ""


def minimised(config: Config) -> str:
    """The line that a run begins with: each objective, with the settings that it goes by."""
    objective = config.build_objective()
    weights = objective.weights
    parts = [
        (f"{weight:g} " if len(weights) > 1 or weight != 1 else "")
        + _with_settings(name, objective)
        for name, weight in weights.items()
    ]
    default = "" if "objective" in config.model_fields_set else ", for no objective is set"
    return f"minimising {' + '.join(parts)}{default}"


def _with_settings(name: str, objective: Objective) -> str:
    settings = []
    if name == "mle" and objective.label_smoothing:
        settings.append(f"label smoothing {objective.label_smoothing:g}")
    if name == "random":
        settings.append(f"{objective.random_subset_size} words")
    if scores_first_token(name, objective.first_token_mle):
        settings.append("first token over the vocabulary")
    if name in objective.alternatives:
        given = asdict(objective.alternatives[name])
        told = {k: f"{v:g}" if isinstance(v, float) else v for k, v in given.items()}
        settings += [f"{key} {value}" for key, value in told.items() if value is not None]
    return NAMES[name] + (f" ({', '.join(settings)})" if settings else "")
