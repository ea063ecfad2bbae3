"""Computes a weighted mixture of objectives, as the configuration key `objective` describes it."""

import copy
import math
from collections.abc import Mapping
from functools import partial, wraps
from inspect import signature
from typing import Any, Callable, NamedTuple, Optional, Union

import torch
from torch import Tensor, nn

from smile import alternatives
from smile.alternatives import ABOVE_0, ALTERNATIVES, LOSSES, WEIGHTS
from smile.fused import Term, fused_losses
from smile.loss import IGNORE, mle_losses, own_words, smile_losses, with_first_token_mle
from smile.packing import caption_blocks

Spec = Union[str, Mapping[str, Union[float, Mapping[str, Any]]]]
OBJECTIVES = ("mle", "smile", "random", "reverse", *ALTERNATIVES)
# Whether the authors' code scores the first token of a caption over the whole vocabulary.
FIRST_TOKEN_MLE = {"smile": True, "random": False, "reverse": True}


class ObjectiveOutput(NamedTuple):
    """The result of an `Objective`, and of a captioner's forward.

    - loss: the weighted sum of objectives, by default averaged over labelled tokens.
    - parts: the unweighted, detached value of each objective by name, with the same reduction.
    - tokens: a scalar, the number of labelled tokens (int64), or the sum of their weights.
    """

    loss: Tensor
    parts: dict[str, Tensor]
    tokens: Tensor


def parse_objective(spec: Spec) -> dict[str, float]:
    """Return the weight of each objective by name.

    spec: a name, or a mapping such as {mle: 0.01, smile: 0.99}. An objective with parameters has a
    mapping as value: {mle: 0.5, focal: {weight: 0.5, gamma: 1}}. Raises a one-line ValueError for
    an unknown name, a weight that is not a positive number, or a wrong parameter.
    """
    return _parse(spec)[0]


def _parse(spec: Spec) -> tuple[dict[str, float], dict[str, dict[str, Any]]]:
    """Return the weight and the parameters of each objective by name."""
    spec = {spec: 1.0} if isinstance(spec, str) else spec
    if not isinstance(spec, Mapping) or not spec:
        raise ValueError(
            f"objective is {spec!r}; give a name, or a mapping of names to weights: "
            f"{', '.join(OBJECTIVES)}"
        )
    weights, options = {}, {}
    for name, value in spec.items():
        if name not in OBJECTIVES:
            raise ValueError(f"objective {name!r} is unknown; choose from {', '.join(OBJECTIVES)}")
        function = ALTERNATIVES.get(name)
        ranges = {"weight": ABOVE_0}
        for key in signature(function).parameters if function else ():
            if key not in ("logits", "labels", "mle"):
                ranges[key] = {**LOSSES, **WEIGHTS}[function]
        given = dict(value) if isinstance(value, Mapping) else {"weight": value}
        for key, number in given.items():
            if key not in ranges:
                names = ", ".join(ranges)
                raise ValueError(f"objective {name!r} has no parameter {key!r}; it has {names}")
            low, high = ranges[key]
            is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
            if not is_number or not low <= number <= high or number == math.inf:
                raise ValueError(
                    f"objective {name!r}: {key} is {number!r}; give a number from {low} to {high}"
                )
        weights[name], options[name] = given.pop("weight", 1.0), given
    return weights, options


def _not_compiled(method: Callable) -> Callable:
    """Give a method a graph break: shapes in it depend on the values of labels.

    `torch.compiler.disable` as a decorator would import torch's compiler, which takes a second.
    """

    @wraps(method)
    def call(*args, **kwargs):
        run = torch.compiler.disable(method) if torch.compiler.is_compiling() else method
        return run(*args, **kwargs)

    return call


class Objective(nn.Module):
    """A weighted sum of MLE, SMILE, SMILE's two ablations and the losses of `smile.alternatives`.

    - spec: see `parse_objective`.
    - label_smoothing: of `mle` alone.
    - first_token_mle: of SMILE and its ablations. None means FIRST_TOKEN_MLE.
    - random_subset_size: how many words `random` samples for each label.
    - pad_token_id: the ablations leave it out; see `with_tokens`.
    """

    def __init__(
        self,
        spec: Spec = "smile",
        label_smoothing: float = 0.0,
        first_token_mle: Optional[bool] = None,
        random_subset_size: int = 10,
        pad_token_id: Optional[int] = None,
    ):
        super().__init__()
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing is {label_smoothing}; give a number from 0 to 1")
        self.weights, self.options = _parse(spec)
        self.label_smoothing = label_smoothing
        self.first_token_mle = first_token_mle
        self.random_subset_size = random_subset_size
        self.pad_token_id = pad_token_id

    @_not_compiled
    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        segments: Optional[Tensor] = None,
        weights: Optional[Tensor] = None,
        reduction: str = "mean",
    ) -> ObjectiveOutput:
        """Compute the loss from logits. `from_hidden` computes the same with less memory.

        - logits: (B, N, V), any float type. `logits[b, n]` predicts `labels[b, n]`.
        - labels: int64 (B, N), -100 where not scored.
        - segments: integers (B, N) that divide rows into captions, see `smile.packing`. If None,
          each row is one caption.
        - weights: floats >= 0, (B, N) for tokens or (B,) for rows. A weight of 0 ignores a token,
          and a weight of 2 counts it twice.
        - reduction: "mean" over labelled tokens, "sum" or "none".

        Raises a one-line ValueError for shapes that do not fit and, on a CPU, for a label outside
        of the vocabulary or a weight below 0. A compiled program has a graph break here.
        """
        labels, factors, tokens = _prepare(logits, labels, weights, reduction, logits.size(-1))
        terms = self._terms(logits.size(2), segments)
        # These zeros depend on the logits: the loss of a batch without labels has a gradient.
        losses = factors.new_zeros(len(terms), factors.numel()) + logits[:0].sum()
        for positions, targets in self._blocks(labels, segments):
            block = logits if targets is labels else logits.flatten(0, 1)[positions]
            scored = targets != IGNORE
            found = torch.stack([term.losses(block, targets)[scored] for term in terms])
            losses = losses.index_copy(1, positions[scored], found.to(losses.dtype))
        parts = _reduce(losses.view(len(terms), *labels.shape) * factors, reduction)
        loss = sum(term.share * part for term, part in zip(terms, parts))
        return ObjectiveOutput(loss, dict(zip(self.weights, parts.detach())), tokens)

    @_not_compiled
    def from_hidden(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Optional[Tensor],
        labels: Tensor,
        segments: Optional[Tensor] = None,
        weights: Optional[Tensor] = None,
        reduction: str = "mean",
    ) -> ObjectiveOutput:
        """Compute the fused linear loss: the loss of `forward`, without a tensor of all logits.

        - hidden: (B, N, D)
        - weight, bias: the language head's, (V, D) and (V,) or None
        - other arguments: as in `forward`

        Logits are hidden @ weight.T + bias, in autocast's dtype under autocast. Loss and gradients
        equal those of `forward` up to rounding. There is no second derivative. Hidden states at
        positions without a label are not read.
        """
        labels, factors, tokens = _prepare(hidden, labels, weights, reduction, len(weight))
        loss, losses = fused_losses(
            hidden,
            weight,
            bias,
            labels,
            self._terms(len(weight), segments),
            self._blocks(labels, segments),
            factors,
            per_token=reduction == "none",
        )
        parts = _reduce(losses * factors, reduction)
        return ObjectiveOutput(loss, dict(zip(self.weights, parts)), tokens)

    def _blocks(self, labels: Tensor, segments: Optional[Tensor]) -> list:
        # With pad_token_id, reverse subsetting reads whether a row ends in padding.
        whole_rows = "reverse" in self.weights and self.pad_token_id is not None
        return caption_blocks(labels, segments, whole_rows)

    def _terms(self, vocabulary: int, segments: Optional[Tensor]) -> list[Term]:
        padding = self.pad_token_id if segments is None else None
        return [self._term(*item, vocabulary, padding) for item in self.weights.items()]

    def _term(self, name: str, share: float, vocabulary: int, padding: Optional[int]) -> Term:
        """Return an objective. padding: what `reverse` leaves out of rows that end in padding."""
        if name == "mle":
            smoothing = self.label_smoothing
            losses = partial(mle_losses, label_smoothing=smoothing)
            return Term(share, losses, weigh=torch.ones_like, label_smoothing=smoothing)
        if name in ALTERNATIVES:
            function = partial(ALTERNATIVES[name], **self.options[name])
            if ALTERNATIVES[name] in WEIGHTS:
                return Term(share, partial(alternatives.weighed, weigh=function), weigh=function)
            return Term(share, function)
        first = FIRST_TOKEN_MLE[name] if self.first_token_mle is None else self.first_token_mle
        if name == "reverse":
            losses = partial(alternatives.reverse, pad_token_id=padding, first_token_mle=first)
            return Term(share, losses)
        losses, subset = smile_losses, own_words
        if name == "random":
            subset = partial(
                alternatives.random_words,
                vocabulary=vocabulary,
                size=self.random_subset_size,
                pad_token_id=self.pad_token_id,
            )
            losses = partial(alternatives.random, sample=subset)
        if first:
            losses = partial(with_first_token_mle, losses=losses)
        return Term(share, losses, subset=subset, first_token_mle=first)

    def with_tokens(self, pad_token_id: int, eos_token_id: int) -> "Objective":
        """Return a copy with a tokenizer's token ids. An `eos_token_id` in the spec is kept."""
        objective = copy.deepcopy(self)
        objective.pad_token_id = pad_token_id
        if "selective_eos" in objective.options:
            objective.options["selective_eos"].setdefault("eos_token_id", eos_token_id)
        return objective


def smile_loss(
    logits: Tensor, labels: Tensor, first_token_mle: bool = False, **options: Any
) -> Tensor:
    """Compute SMILE: each label's cross-entropy under a softmax over its caption's words.

    Arguments are as in `Objective.forward`, also the options. first_token_mle: score the first
    label of each caption over the whole vocabulary, as the authors' training code does. Returns a
    scalar, or (B, N) with reduction "none".
    """
    return Objective("smile", first_token_mle=first_token_mle)(logits, labels, **options).loss


def _prepare(inputs, labels, weights, reduction: str, vocabulary: int):
    """Return labels, the factors (B, N) of their losses, and the number of tokens.

    inputs: logits or hidden states (B, N, X). Labels are IGNORE where weights are 0. Factors are
    the weights, 0 where nothing is scored; for a mean, divided by the number of tokens.
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction is {reduction!r}; it must be 'mean', 'sum' or 'none'")
    if inputs.dim() != 3 or inputs.shape[:2] != labels.shape:
        shapes = f"{tuple(inputs.shape)} for labels of {tuple(labels.shape)}"
        raise ValueError(f"logits or hidden states are {shapes}; give one for each label")
    dtype = torch.promote_types(inputs.dtype, torch.float32)
    factors = torch.ones_like(labels, dtype=dtype)
    if weights is not None:
        weights = weights if weights.dim() == 2 else weights.unsqueeze(1)
        factors = factors * weights.detach().to(factors)
        if factors.is_cpu and not ((factors >= 0) & factors.isfinite()).all():
            raise ValueError("weights must be finite numbers of at least 0")
        labels = labels.masked_fill(factors == 0, IGNORE)
    scored = labels != IGNORE
    if labels.is_cpu and (wrong := scored & ((labels < 0) | (labels >= vocabulary))).any():
        caption, position = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"the label at caption {caption}, position {position} is {labels[caption, position]}, "
            f"but the vocabulary has {vocabulary} tokens (from 0) and {IGNORE} is not scored"
        )
    factors = factors * scored
    tokens = scored.sum() if weights is None else factors.sum()
    if reduction == "mean":
        factors = factors / tokens.masked_fill(tokens == 0, 1)
    return labels, factors, tokens


def _reduce(losses: Tensor, reduction: str) -> Tensor:
    """Return losses (K, B, N) with reduction "none", otherwise their sums (K,)."""
    return losses if reduction == "none" else losses.sum((1, 2))
