"""Lists the variants of a sweep: mixtures of MLE and SMILE, ablations, and other objectives."""

import math
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Optional

from captioning.config import Config
from captioning.config.objectives import objective_title, training_terms
from captioning.runtime.errors import UserError
from smile import parse_objective

MLE_WEIGHTS = (0.0, 0.01, 0.1, 0.5, 1.0)
SUBSET_SIZES = (1, 10, 100)  # values of `random_subset_size` in the ablation subset_size
PUBLISHED_SUBSET_SIZE = 10
# Weights of MLE in the mixtures that are compared with other objectives.
COMPARED_MLE_WEIGHTS = (0.01, 0.1, 0.5)
ABLATIONS = ("objective", "first_token_mle", "first_token_shift", "subset_size")


class Variant(NamedTuple):
    """A variant of the sweep's configuration.

    name: the name of the run's folder. label: the variant's name in figures and tables. overrides:
    strings key=value for the configuration. weight: MLE's share in a mixture of MLE and SMILE, from
    0 (SMILE alone) to 1 (MLE alone); None for other objectives. seed: None if the sweep has only
    one seed.
    """

    name: str
    label: str
    overrides: tuple[str, ...]
    weight: Optional[float] = None
    seed: Optional[int] = None


def plan(
    weights: Iterable[float] = (),
    objectives: Sequence[str] = (),
    ablations: Iterable[str] = (),
    sizes: Sequence[int] = SUBSET_SIZES,
) -> list[Variant]:
    """Return the variants of a sweep, without duplicates: mixtures, ablations, other objectives.

    weights: the weights of MLE in the mixtures, from 0 to 1. objectives, ablations: names. If MLE
    and SMILE are both among the objectives, the mixtures with COMPARED_MLE_WEIGHTS are added.
    sizes: the sizes of random subsets that the ablation subset_size compares.
    """
    weights = set(weights)
    if "mle" in objectives:
        weights.add(1.0)
    if "smile" in objectives:
        weights.add(0.0)
    if {"mle", "smile"} <= set(objectives):
        weights.update(COMPARED_MLE_WEIGHTS)
    variants = [_mixture(weight) for weight in sorted(weights)]
    for ablation in ablations:
        variants += _ablation_variants(ablation, sizes)
    variants += [_single_objective(name) for name in objectives if name not in ("mle", "smile")]
    return list({variant.name: variant for variant in variants}.values())


def with_seeds(variants: Sequence[Variant], seeds: int) -> list[Variant]:
    """Return each variant once per seed, from 0 to `seeds` - 1.

    If `seeds` is 1, the variants are returned unchanged, with the seed of the configuration.
    """
    if seeds == 1:
        return list(variants)
    return [
        v._replace(name=f"{v.name}_seed{seed}", overrides=(*v.overrides, f"seed={seed}"), seed=seed)
        for seed in range(seeds)
        for v in variants
    ]


def varied_keys() -> set[str]:
    """Return all configuration keys that a variant may override."""
    return overridden_keys(plan(MLE_WEIGHTS, ablations=ABLATIONS))


def overridden_keys(variants: Iterable[Variant]) -> set[str]:
    return {override.partition("=")[0] for variant in variants for override in variant.overrides}


def mle_share(config: Config) -> Optional[float]:
    """Return MLE's share in a run's objective, from 0 to 1.

    Returns None if the objective has other parts than MLE and SMILE.
    """
    if not set(training_terms(config)) <= {"mle", "smile"}:
        return None
    parts = parse_objective(config.objective)
    return parts.get("mle", 0.0) / sum(parts.values())


def _mixture(weight: float) -> Variant:
    if weight in (0, 1):
        name = "mle" if weight else "smile"
        return Variant(name, name.upper(), (f"objective={name}",), weight)
    smile = round(1 - weight, 9)
    objective = f"objective={{mle: {weight:g}, smile: {smile:g}}}"
    return Variant(f"mle{weight:g}", f"{weight:g} MLE + {smile:g} SMILE", (objective,), weight)


def _single_objective(name: str) -> Variant:
    """Return a variant with a single objective, with its default parameters."""
    if name == "random":
        return _random_subset(PUBLISHED_SUBSET_SIZE)
    return Variant(name, objective_title(name), (f"objective={name}",))


def _random_subset(size: int) -> Variant:
    overrides = ("objective=random", f"random_subset_size={size}")
    return Variant(f"random{size}", f"random subset of {size}", overrides)


def _ablation_variants(name: str, sizes: Sequence[int]) -> Iterator[Variant]:
    """Yield the variants that an ablation compares. One of them has the settings of the paper."""
    if name == "objective":
        yield _mixture(1)
        yield _mixture(0)
        yield _random_subset(PUBLISHED_SUBSET_SIZE)
        yield _single_objective("reverse")
        half_each = ("objective={reverse: 0.5, mle: 0.5}",)
        yield Variant("reverse0.5_mle0.5", "0.5 reverse + 0.5 MLE", half_each)
    elif name == "subset_size":
        yield from map(_random_subset, sizes)
    else:
        yield _mixture(0)
        options = ("objective=smile", "first_token_mle=false")
        if name == "first_token_mle":
            yield Variant("smile_no_first_token_mle", "SMILE, no first-token MLE", options)
        else:
            shifted = (*options, "first_token_shift=true")
            yield Variant("smile_first_token_shift", "SMILE, first token shifted", shifted)


def check_counts(arguments: Namespace, *names: str) -> None:
    """Raise UserError unless each of these arguments is None or at least 1."""
    for name in names:
        number = getattr(arguments, name)
        if number is not None and number < 1:
            raise UserError(f"--{name} is {number}; it must be 1 or more")


def read_weights(text: str) -> list[float]:
    """Parse numbers from 0 to 1, such as "0,0.01,1". Raises UserError."""
    return _parse_numbers(text, float, 0, 1, "weights from 0 to 1: 0,0.01,1")


def read_sizes(text: str) -> list[int]:
    """Parse positive whole numbers, such as "1,10,100". Raises UserError."""
    return _parse_numbers(text, int, 1, math.inf, "whole numbers from 1 on: 1,10,100")


def read_names(text: Optional[str], allowed: Sequence[str], kind: str) -> list[str]:
    """Return the names in a text such as "mle,focal" or "all"; [] for None.

    allowed: the names that "all" stands for. kind: what is named, such as "an objective". Raises
    UserError for a name that is not allowed.
    """
    if text is None:
        return []
    names = list(allowed) if text == "all" else list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in allowed:
            choices = ", ".join(allowed)
            raise UserError(f"{name!r} is not {kind}; give some of {choices}, with commas, or all")
    return names


def _parse_numbers(text: str, kind: type, lowest: float, highest: float, example: str) -> list:
    """Return the numbers in a text, where they are separated by commas.

    kind: float or int. example: what the error says is expected. Raises UserError.
    """
    try:
        numbers = [kind(part) for part in text.split(",")]
        if all(lowest <= number <= highest for number in numbers):
            return numbers
    except ValueError:
        pass
    raise UserError(f"{text!r} are not {example}")
