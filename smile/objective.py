"""A weighted mixture of objectives, as the key `objective` of a run gives it."""

import copy
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, NamedTuple, Optional, Union

import torch
from torch import Tensor, nn

from smile.alternatives import ALTERNATIVES
from smile.captions import check_segments, reduced_by_caption
from smile.head import computed_in, is_distributed, whole
from smile.labels import check_labels, check_reduction, count, reduce, weigh
from smile.loading import load
from smile.mixture import LossInputs, Settings, scores_first_token
from smile.mle import check_smoothing, mle_loss
from smile.operator import mixture_from_hidden
from smile.smile import smile_loss
from smile.subsetting import random_subset_loss, reverse_subset_loss

Spec = Union[str, Mapping[str, Union[float, Mapping[str, Any]]]]
OBJECTIVES = ("mle", "smile", "random", "reverse", *ALTERNATIVES)


class ObjectiveOutput(NamedTuple):
    """The result of a captioner's forward.

    loss: the weighted sum, mean over labelled tokens unless another reduction is given.
    parts: each objective by name, unweighted, reduced likewise, detached. tokens: the number of
    labelled tokens, int64 scalar; with weights of tokens their sum.
    """

    loss: Tensor
    parts: dict[str, Tensor]
    tokens: Tensor


def captions_an_image(captions: Sequence[Sequence[str]], images: int) -> int:
    """The number k of captions of each of a batch's images; ValueError where it differs."""
    counts = [len(group) for group in captions]
    if not counts or 0 in counts or counts != counts[:1] * images:
        raise ValueError(f"{counts} captions for {images} images; each needs as many, at least one")
    return counts[0]


def parse_objective(spec: Spec) -> dict[str, float]:
    """Weights by name from a single name or from a mapping such as {mle: 0.01, smile: 0.99}.

    A weight may stand in a mapping with parameters: {mle: 0.5, focal: {weight: 0.5, gamma: 1}}.
    Raises ValueError, in one line, for an unknown name, a weight that is not a positive number, or
    a wrong parameter.
    """
    return {name: weight for name, (weight, _) in _parsed(spec).items()}


def _parsed(spec: Spec) -> dict[str, tuple[float, Any]]:
    """The weight of each name, and its `TokenLoss`; None for MLE, SMILE and its ablations."""
    spec = {spec: 1.0} if isinstance(spec, str) else spec
    if not spec:
        raise ValueError(f"objective is empty; name one or more of {', '.join(OBJECTIVES)}")
    parsed = {}
    for name, given in spec.items():
        if name not in OBJECTIVES:
            raise ValueError(f"objective {name!r} is unknown; choose from {', '.join(OBJECTIVES)}")
        parameters = dict(given) if isinstance(given, Mapping) else {"weight": given}
        weight = parameters.pop("weight", 1.0)
        number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
        if not number or not math.isfinite(weight) or weight <= 0:
            raise ValueError(f"objective {name!r} has weight {weight!r}; give a number above 0")
        parsed[name] = float(weight), _alternative(name, parameters)
    return parsed


def _alternative(name: str, parameters: dict[str, Any]) -> Any:
    kind = load(ALTERNATIVES[name]) if name in ALTERNATIVES else None
    known = [field.name for field in fields(kind)] if kind else []
    for parameter in parameters:
        if parameter not in known:
            allowed = ", ".join(["weight", *known])
            raise ValueError(f"objective {name!r} has no parameter {parameter!r}; it has {allowed}")
    try:
        return kind(**parameters) if kind else None
    except ValueError as error:
        raise ValueError(f"objective {name!r}: {error}") from error


class Objective(nn.Module):
    """The loss that a captioner minimises: a weighted sum of MLE, SMILE, its ablations and the
    alternatives of `smile.alternatives`.

    spec: see `parse_objective`. label_smoothing applies to `mle` alone. first_token_mle applies to
    SMILE and its two ablations; None is as in the original: not with `random`. `random` samples
    words from torch's global generator, never `pad_token_id`. `truncation` goes by the losses of
    the module's earlier calls in training with gradients, which `state` returns for a checkpoint.
    """

    def __init__(
        self,
        spec: Spec = "smile",
        label_smoothing: float = 0.0,
        first_token_mle: Optional[bool] = None,
        random_subset_size: int = 10,
        pad_token_id: Optional[int] = None,
        ignore_index: int = -100,
    ):
        super().__init__()
        check_smoothing(label_smoothing)
        parsed = _parsed(spec)
        self.weights = {name: weight for name, (weight, _) in parsed.items()}
        self.label_smoothing = label_smoothing
        self.first_token_mle = first_token_mle
        self.random_subset_size = random_subset_size
        self.pad_token_id = pad_token_id
        self.ignore_index = ignore_index
        self._set_alternatives({k: loss for k, (_, loss) in parsed.items() if loss is not None})
        truncation = self.alternatives.get("truncation")
        self.means = truncation.last_means() if truncation else None

    def _set_alternatives(self, alternatives: dict[str, Any]) -> None:
        self.alternatives = alternatives  # each a `TokenLoss`
        self.alternatives_text = repr({name: asdict(x) for name, x in alternatives.items()})

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        segments: Optional[Tensor] = None,
        weights: Optional[Tensor] = None,
        reduction: str = "mean",
    ) -> ObjectiveOutput:
        """logits: (B, N, V), any float type; labels: int64 (B, N) with `ignore_index`.

        Segments, weights and reduction are those of `smile_loss`. This is the definition, which
        `from_hidden` computes with less memory. On a CPU a label outside of the vocabulary raises
        ValueError.
        """
        logits = whole(logits)
        words = self._sample(labels, logits.size(2))
        batch = (logits, labels, words, segments, reduction, weights)
        parts = {name: self._part(name, *batch) for name in self.weights}
        loss = sum(weight * parts[name] for name, weight in self.weights.items())
        tokens = count(*weigh(labels, weights, self.ignore_index), self.ignore_index)
        return ObjectiveOutput(loss, {k: v.detach() for k, v in parts.items()}, tokens)

    def from_hidden(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Optional[Tensor],
        labels: Tensor,
        segments: Optional[Tensor] = None,
        weights: Optional[Tensor] = None,
        reduction: str = "mean",
        scale: float = 1.0,
        softcap: Optional[float] = None,
    ) -> ObjectiveOutput:
        """The fused linear loss: `forward` of a head's logits, without a tensor of all of them.

        hidden: (B, N, D); weight: (V, D); bias: (V,) or None. With z = hidden @ weight.T + bias,
        logits are scale * z, or with a cap softcap * tanh(scale * z / softcap). The rest is as in
        `forward`. Gradients are the same up to rounding; under autocast z is computed in its dtype.
        Hidden states whose label is `ignore_index` are not read. There is no second derivative. A
        weight that is a DTensor with sharded rows is not gathered, see `smile.sharded`.
        """
        check_reduction(reduction)
        vocabulary, shards = len(weight), None
        if any(map(is_distributed, (hidden, weight, bias))):
            on_one_process = load("smile.sharded:on_one_process")
            hidden, weight, bias, shards = on_one_process(hidden, weight, bias)
            each = (labels, segments, weights)
            labels, segments, weights = (x.full_tensor() if is_distributed(x) else x for x in each)
            for name, loss in self.alternatives.items():
                if loss.reads_logits:
                    raise ValueError(
                        f"objective {name!r} reads all logits of a position, which a sharded head "
                        "never has; give it logits, or another objective"
                    )
        if hidden.shape[:2] != labels.shape:
            raise ValueError(
                f"hidden is {tuple(hidden.shape)}, but labels is {tuple(labels.shape)}; "
                "give a hidden state for each label"
            )
        labels, weights = weigh(labels, weights, self.ignore_index)
        if segments is not None:
            check_segments(segments, labels)
        check_labels(labels, vocabulary, self.ignore_index)
        inputs, dtype = (hidden, weight, bias), computed_in(hidden)
        settings = Settings(
            *(getattr(self, name) for name in Settings._fields[:6]), reduction, scale, softcap
        )
        factors, words = None, self._sample(labels, vocabulary)
        if "truncation" in self.weights:  # its first pass
            mle = settings._replace(weights={"mle": 1.0}, label_smoothing=0.0, reduction="none")
            batch = (labels, None, None, None, None, mle, dtype, [False] * 3, shards)
            losses, _ = mixture_from_hidden(
                *(None if x is None else x.detach() for x in inputs), LossInputs(*batch)
            )
            factors = self._factors(losses, labels, segments, weights)
        differentiate = torch.is_grad_enabled()
        wanted = [differentiate and x is not None and x.requires_grad for x in inputs]
        batch = (labels, words, segments, weights, factors, settings, dtype, wanted, shards)
        loss, parts = mixture_from_hidden(*inputs, LossInputs(*batch))
        parts = dict(zip(self.weights, parts.unbind()))
        return ObjectiveOutput(loss, parts, count(labels, weights, self.ignore_index))

    def with_tokens(self, pad_token_id: int, eos_token_id: int) -> "Objective":
        """A copy for a tokeniser's padding, and its end token where none was given."""
        own = copy.deepcopy(self)
        own.pad_token_id = pad_token_id
        selective = own.alternatives.get("selective_eos")
        if selective and selective.eos_token_id is None:
            selective = replace(selective, eos_token_id=eos_token_id)
            own._set_alternatives({**own.alternatives, "selective_eos": selective})
        return own

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint: truncation's last losses; empty without truncation."""
        return self.means.state() if self.means is not None else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a `state`. Raises ValueError for one of another window."""
        if self.means is not None and state:
            self.means.restore(state)

    def _factors(self, losses, labels, segments, weights) -> Tensor:
        """Truncation's factors (B, N) of MLE's losses. Only training reads and adds last losses."""
        means = self.means if self.training and torch.is_grad_enabled() else None
        batch = (losses, labels, segments, weights, self.ignore_index, means)
        return self.alternatives["truncation"].factors(*batch)

    def _sample(self, labels: Tensor, vocabulary: int) -> Optional[Tensor]:
        """The words (B, N, R) of random subsetting; None without it."""
        if "random" not in self.weights:
            return None
        shape = (*labels.shape, self.random_subset_size)
        return torch.randint(vocabulary, shape, device=labels.device)

    def _part(self, name, logits, labels, words, segments, reduction, weights) -> Tensor:
        ignore, pad = self.ignore_index, self.pad_token_id
        how = {"reduction": reduction, "weights": weights}
        if name == "mle":
            return mle_loss(logits, labels, ignore, self.label_smoothing, **how)
        if name == "truncation":
            labels, weights = weigh(labels, weights, ignore)
            losses = mle_loss(logits, labels, ignore, reduction="none")
            losses = losses * self._factors(losses, labels, segments, weights)
            return reduce(losses, labels, ignore, reduction, weights)
        if name in self.alternatives:
            losses_of = functools.partial(self.alternatives[name].of_captions, ignore_index=ignore)
            rest = (ignore, reduction, segments, weights)
            return reduced_by_caption(losses_of, (logits,), labels, *rest)
        how["segments"] = segments
        first = scores_first_token(name, self.first_token_mle)
        if name == "smile":
            return smile_loss(logits, labels, ignore, first, **how)
        if name == "reverse":
            return reverse_subset_loss(logits, labels, ignore, first, pad, **how)
        return random_subset_loss(logits, labels, words, ignore, first, pad, **how)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}: {weight:g}" for name, weight in self.weights.items())
