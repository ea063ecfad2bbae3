"""Lists the variants of a sweep: mixtures of MLE and SMILE, ablations, and other objectives."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Optional

from captioning.config import Config
from captioning.config.objectives import objective_title, training_terms
from smile import parse_objective

MLE_WEIGHTS = (0.0, 0.01, 0.1, 0.5, 1.0)
# Weights of MLE in the mixtures that are compared with other objectives.
COMPARED_MLE_WEIGHTS = (0.01, 0.1, 0.5)
SUBSET_SIZES = (1, 10, 100)  # values of `random_subset_size` in the ablation subset_size
PUBLISHED_SUBSET_SIZE = 10
_PURE = {"mle": 1.0, "smile": 0.0}  # the mixtures of one objective, by MLE's weight


class Variant(NamedTuple):
    """A variant of the sweep's configuration.

    - name: of the run's folder
    - label: in tables and figures; shared by the runs of all seeds
    - overrides: key=value for the configuration
    """

    name: str
    label: str
    overrides: tuple[str, ...]


def plan(
    weights: Iterable[float] = (),
    objectives: Sequence[str] = (),
    ablations: Iterable[str] = (),
    sizes: Sequence[int] = SUBSET_SIZES,
) -> list[Variant]:
    """Return the variants of a sweep, each once.

    - weights: MLE's weights in the mixtures, from 0 to 1
    - objectives: names; with MLE and SMILE among them, the mixtures with COMPARED_MLE_WEIGHTS are
      added
    - ablations: keys of `ablation_variants`
    - sizes: the sizes of random subsets that the ablation subset_size compares
    """
    weights = {*weights, *(_PURE[name] for name in objectives if name in _PURE)}
    if _PURE.keys() <= set(objectives):
        weights.update(COMPARED_MLE_WEIGHTS)
    variants = [_mixture(weight) for weight in sorted(weights)]
    for name in ablations:
        variants += ablation_variants(sizes)[name]
    variants += [_single_objective(name) for name in objectives if name not in _PURE]
    return list({variant.name: variant for variant in variants}.values())


def with_seeds(variants: Sequence[Variant], seeds: int) -> list[Variant]:
    """Return each variant once per seed, from 0 to `seeds` - 1; unchanged for a single seed.

    A single seed is that of the configuration.
    """
    if seeds == 1:
        return list(variants)
    return [
        Variant(f"{name}_seed{seed}", label, (*overrides, f"seed={seed}"))
        for seed in range(seeds)
        for name, label, overrides in variants
    ]


def ablation_variants(sizes: Sequence[int] = SUBSET_SIZES) -> dict[str, list[Variant]]:
    """Return {ablation: the variants that it compares}, with the paper's own settings first."""
    smile, without = _mixture(0), ("objective=smile", "first_token_mle=false")
    shifted = (*without, "first_token_shift=true")
    return {
        "objective": [
            _mixture(1),
            smile,
            _random_subset(PUBLISHED_SUBSET_SIZE),
            _single_objective("reverse"),
            Variant(
                "reverse0.5_mle0.5",
                "0.5 reverse + 0.5 MLE",
                ("objective={reverse: 0.5, mle: 0.5}",),
            ),
        ],
        "first_token_mle": [
            smile,
            Variant("smile_no_first_token_mle", "SMILE, no first-token MLE", without),
        ],
        "first_token_shift": [
            smile,
            Variant("smile_first_token_shift", "SMILE, first token shifted", shifted),
        ],
        "subset_size": [_random_subset(size) for size in sizes],
    }


def keys_in(overrides: Iterable[str]) -> set[str]:
    """Return the keys of arguments of the form key=value."""
    return {override.partition("=")[0] for override in overrides}


def own_keys(variants: Iterable[Variant]) -> set[str]:
    """Return the keys that the sweep of these variants sets, so that the user cannot."""
    return {"output_dir"}.union(*(keys_in(variant.overrides) for variant in variants))


def mle_share(config: Config) -> Optional[float]:
    """Return MLE's weight in a mixture of MLE and SMILE, from 0 to 1; None for other objectives."""
    if not _PURE.keys() >= set(training_terms(config)):
        return None
    parts = parse_objective(config.objective)
    return parts.get("mle", 0.0) / sum(parts.values())


def _mixture(weight: float) -> Variant:
    for name, pure in _PURE.items():
        if weight == pure:
            return _single_objective(name)
    smile = round(1 - weight, 9)
    objective = f"objective={{mle: {weight:g}, smile: {smile:g}}}"
    return Variant(f"mle{weight:g}", f"{weight:g} MLE + {smile:g} SMILE", (objective,))


def _single_objective(name: str) -> Variant:
    """Return the variant of an objective with its default parameters."""
    if name == "random":
        return _random_subset(PUBLISHED_SUBSET_SIZE)
    return Variant(name, objective_title(name), (f"objective={name}",))


def _random_subset(size: int) -> Variant:
    overrides = ("objective=random", f"random_subset_size={size}")
    return Variant(f"random{size}", f"random subset of {size}", overrides)
