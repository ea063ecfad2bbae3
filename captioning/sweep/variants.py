"""What runs a sweep has: those of the mixture weights, then those of each ablation, each once."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Optional, Union

from captioning.config import Config
from captioning.runtime.errors import UserError
from smile import parse_objective

MLE_WEIGHTS = (0.0, 0.01, 0.1, 0.5, 1.0)
SUBSET_SIZES = (1, 10, 100)
PUBLISHED_SIZE = 10  # of the random subset
ABLATIONS = ("objective", "first_token_mle", "first_token_shift", "subset_size")


class Variant(NamedTuple):
    """One run: its folder's name, what it is called, the keys that make it another run.

    weight: MLE's share where it is one of the mixtures of MLE and SMILE that make the frontier.
    """

    name: str
    label: str
    overrides: tuple[str, ...]
    weight: Optional[float] = None


def plan(
    weights: Iterable[float], ablations: Iterable[str], sizes: Sequence[int] = SUBSET_SIZES
) -> list[Variant]:
    """The runs, without those that two ablations share. weights: MLE's shares, from 0 to 1."""
    mixtures = [_mixture(weight) for weight in sorted(set(weights))]
    others = (variant for ablation in ablations for variant in _of_ablation(ablation, sizes))
    return list({variant.name: variant for variant in (*mixtures, *others)}.values())


def varied_keys() -> set[str]:
    """The keys in which the runs of any sweep differ."""
    variants = plan(MLE_WEIGHTS, ABLATIONS)
    return {o.partition("=")[0] for variant in variants for o in variant.overrides}


def mle_share(config: Config) -> Optional[float]:
    """MLE's share in a run's objective; None where that is not of MLE and SMILE alone."""
    parts = parse_objective(config.objective)
    if not set(parts) <= {"mle", "smile"}:
        return None
    return parts.get("mle", 0.0) / sum(parts.values())


def _mixture(weight: float) -> Variant:
    if weight in (0, 1):
        name = "mle" if weight else "smile"
        return Variant(name, name.upper(), (f"objective={name}",), weight)
    rest = round(1 - weight, 9)
    objective = f"objective={{mle: {weight:g}, smile: {rest:g}}}"
    return Variant(f"mle{weight:g}", f"{weight:g} MLE + {rest:g} SMILE", (objective,), weight)


def _random(size: int) -> Variant:
    overrides = ("objective=random", f"random_subset_size={size}")
    return Variant(f"random{size}", f"random subset of {size}", overrides)


def _of_ablation(name: str, sizes: Sequence[int]) -> Iterator[Variant]:
    """The runs to compare; those of the paper's settings among them."""
    if name == "objective":
        yield from (_mixture(1), _mixture(0), _random(PUBLISHED_SIZE))
        yield Variant("reverse", "reverse subset", ("objective=reverse",))
        half = ("objective={reverse: 0.5, mle: 0.5}",)
        yield Variant("reverse0.5_mle0.5", "0.5 reverse + 0.5 MLE", half)
    elif name == "subset_size":
        yield from map(_random, sizes)
    else:
        yield _mixture(0)
        without = ("objective=smile", "first_token_mle=false")
        if name == "first_token_mle":
            yield Variant("smile_no_first_token_mle", "SMILE, no first-token MLE", without)
        else:
            shifted = (*without, "first_token_shift=true")
            yield Variant("smile_first_token_shift", "SMILE, first token shifted", shifted)


def read_weights(text: str) -> list[float]:
    """ "0,0.01,1" to numbers from 0 to 1. Raises UserError."""
    return _numbers(text, float, lambda weight: 0 <= weight <= 1, "weights from 0 to 1: 0,0.01,1")


def read_sizes(text: str) -> list[int]:
    """ "1,10,100" to whole numbers from 1 on. Raises UserError."""
    return _numbers(text, int, lambda size: size >= 1, "whole numbers from 1 on: 1,10,100")


def read_ablations(text: str) -> list[str]:
    """ "objective,subset_size" or "all" to names. Raises UserError."""
    names = list(ABLATIONS) if text == "all" else text.split(",")
    for name in names:
        if name not in ABLATIONS:
            known = ", ".join(ABLATIONS)
            raise UserError(f"{name!r} is no ablation; name some of {known}, with commas, or all")
    return names


def _numbers(text: str, kind, allowed, wanted: str) -> list[Union[float, int]]:
    try:
        numbers = [kind(part) for part in text.split(",")]
        if all(map(allowed, numbers)):
            return numbers
    except ValueError:
        pass
    raise UserError(f"{text!r} are not {wanted}")
