"""Names the objectives and rewards that train a run, for reports and log lines."""

from captioning.config.config import Config
from captioning.rewards.registry import REWARDS
from captioning.runtime.registry import load
from smile import OBJECTIVES, parse_objective

_TITLES = {
    "mle": "MLE",
    "smile": "SMILE",
    "random": "random subset",
    "reverse": "reverse subset",
    "selective_eos": "selective EOS",
    "dft": "DFT",
    "tailr": "TaiLr",
    "mixce": "MixCE",
    "gem": "GEM",
    "scalegrad": "ScaleGrad",
}


def objective_title(name: str) -> str:
    """Return the title of an objective, such as "SMILE"."""
    return _TITLES.get(name, name)


def training_terms(config: Config) -> list[str]:
    """Return the names of the run's objectives, preceded by "reward" if the run has rewards."""
    objectives = parse_objective(config.objective) if config.objective else []
    return [*(["reward"] if config.reward else []), *objectives]


def training_name(config: Config) -> str:
    """Return the run's name in reports: rewards with their weights, if any, and objectives."""
    if not config.reward:
        return objective_name(config.objective)
    if not config.objective:
        return _reward_name(config.reward)
    weights = list(parse_objective(config.objective).values())
    share = f"{weights[0]:g} " if len(weights) == 1 and weights != [1] else ""
    return f"{_reward_name(config.reward)} + {share}{objective_name(config.objective)}"


def _reward_name(weights) -> str:
    """Return a name such as "reward CIDEr-D" or "reward true facts+CIDEr-D 1:0.5"."""
    names = "+".join(load(REWARDS[name]).title for name in weights)
    shares = ":".join(f"{weight:g}" for weight in weights.values())
    return f"reward {names}" + (f" {shares}" if shares != "1" else "")


def objective_name(spec) -> str:
    """Return a name such as "MLE" or "focal (gamma 1)"; for a mixture "MLE+SMILE 0.3:0.7".

    spec: the value of the key `objective`.
    """
    weights = parse_objective(spec)
    ordered = [name for name in OBJECTIVES if name in weights]
    names = "+".join(objective_title(name) + _format_parameters(spec, name) for name in ordered)
    if len(ordered) == 1:
        return names
    return f"{names} {':'.join(f'{weights[name]:g}' for name in ordered)}"


def _format_parameters(spec, name: str) -> str:
    """Return an objective's parameters in the key `objective`, such as " (gamma 1)"; "" if none."""
    parameters = spec[name] if isinstance(spec, dict) else {}
    if not isinstance(parameters, dict):
        return ""
    shown = [f"{key} {value}" for key, value in parameters.items() if key != "weight"]
    return f" ({', '.join(shown)})" if shown else ""


def describe_training(config: Config) -> str:
    """Return the first log line of a run: its objectives and rewards."""
    default = "" if "objective" in config.model_fields_set else ", since no objective is set"
    return f"training with {training_name(config)}{default}"
