"""Computes a weighted mixture of objectives, as the configuration key `objective` describes it."""

import copy
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pkgutil import resolve_name
from typing import Any, NamedTuple, Optional, Union

import torch
from torch import Tensor, nn

from smile.alternatives import ALTERNATIVES
from smile.captions import check_segments, reduce_by_caption
from smile.head import compute_dtype, is_distributed, unwrap_replicated
from smile.labels import check_labels, check_reduction, count_labels, prepare_weights, reduce_losses
from smile.mixture import LossInputs, Settings, scores_first_token
from smile.mle import check_smoothing, mle_loss
from smile.smile import smile_loss
from smile.subsetting import random_subset_loss, reverse_subset_loss

Spec = Union[str, Mapping[str, Union[float, Mapping[str, Any]]]]
OBJECTIVES = ("mle", "smile", "random", "reverse", *ALTERNATIVES)


class ObjectiveOutput(NamedTuple):
    """The result of an `Objective`, and of a captioner's forward.

    loss: the weighted sum of objectives, by default averaged over labelled tokens. parts: the
    unweighted, detached value of each objective by name, with the same reduction. tokens: a scalar,
    the number of labelled tokens (int64), or the sum of their weights if the batch has weights.
    """

    loss: Tensor
    parts: dict[str, Tensor]
    tokens: Tensor


def captions_per_image(captions: Sequence[Sequence[str]], images: int) -> int:
    """Return the number of captions per image. Raises ValueError if it differs between images.

    captions: the captions of each image. images: the number of images.
    """
    counts = [len(group) for group in captions]
    if not counts or 0 in counts or counts != counts[:1] * images:
        raise ValueError(f"{counts} captions for {images} images; give each image the same number")
    return counts[0]


def parse_objective(spec: Spec) -> dict[str, float]:
    """Return the weight of each objective by name.

    spec: a name, or a mapping such as {mle: 0.01, smile: 0.99}. An objective with parameters has a
    mapping as value: {mle: 0.5, focal: {weight: 0.5, gamma: 1}}. Raises a one-line ValueError for
    an unknown name, a weight that is not a positive number, or a wrong parameter.
    """
    return _parse_spec(spec)[0]


def _parse_spec(spec: Spec) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the weights of a mixture, and the `TokenLoss`es of its alternatives, by name."""
    spec = {spec: 1.0} if isinstance(spec, str) else spec
    if not isinstance(spec, Mapping) or not spec:
        raise ValueError(
            f"objective is {spec!r}; give a name, or a mapping of names to weights: "
            f"{', '.join(OBJECTIVES)}"
        )
    weights = {}
    alternatives = {}
    for name, value in spec.items():
        if name not in OBJECTIVES:
            raise ValueError(f"objective {name!r} is unknown; choose from {', '.join(OBJECTIVES)}")
        parameters = dict(value) if isinstance(value, Mapping) else {"weight": value}
        weight = parameters.pop("weight", 1.0)
        is_number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
        if not is_number or not 0 < weight < math.inf:
            raise ValueError(f"objective {name!r} has weight {weight!r}; give a number above 0")
        weights[name] = float(weight)
        loss = _build_alternative(name, parameters)
        if loss:
            alternatives[name] = loss
    return weights, alternatives


def _build_alternative(name: str, parameters: dict[str, Any]) -> Any:
    """Return the `TokenLoss` with this name, or None for MLE, SMILE and SMILE's ablations."""
    loss_class = resolve_name(ALTERNATIVES[name]) if name in ALTERNATIVES else None
    allowed = ["weight"]
    if loss_class:
        allowed += [field.name for field in fields(loss_class)]
    for parameter in parameters:
        if parameter not in allowed:
            raise ValueError(
                f"objective {name!r} has no parameter {parameter!r}; it has {', '.join(allowed)}"
            )
    try:
        return loss_class(**parameters) if loss_class else None
    except ValueError as error:
        raise ValueError(f"objective {name!r}: {error}") from error


class Objective(nn.Module):
    """A weighted sum of MLE, SMILE, SMILE's two ablations and the losses of `smile.alternatives`.

    spec: see `parse_objective`. label_smoothing: applies only to `mle`. first_token_mle: applies to
    SMILE and its ablations; None means the choice of the original code, which is True except for
    `random`. `random` samples `random_subset_size` tokens per label from torch's global generator
    and leaves `pad_token_id` out. `truncation` compares a caption's loss with the losses of earlier
    training steps; `state` returns these earlier losses for a checkpoint.
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
        self.weights, alternatives = _parse_spec(spec)
        self.label_smoothing = label_smoothing
        self.first_token_mle = first_token_mle
        self.random_subset_size = random_subset_size
        self.pad_token_id = pad_token_id
        self.ignore_index = ignore_index
        self._set_alternatives(alternatives)
        truncation = self.alternatives.get("truncation")
        self.means = truncation.new_window() if truncation else None

    def _set_alternatives(self, alternatives: dict[str, Any]) -> None:
        self.alternatives = alternatives  # a `TokenLoss` by name
        self.alternatives_text = repr({name: asdict(x) for name, x in alternatives.items()})

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        segments: Optional[Tensor] = None,
        weights: Optional[Tensor] = None,
        reduction: str = "mean",
    ) -> ObjectiveOutput:
        """Compute the loss from logits. `from_hidden` computes the same with less memory.

        logits: (B, N, V), any float type; labels: int64 (B, N), `ignore_index` where not scored.
        Segments, weights and reduction are as in `smile_loss`. On a CPU a label outside of the
        vocabulary raises ValueError.
        """
        logits = unwrap_replicated(logits)
        sampled = self._sample_tokens(labels, logits.size(2))
        parts = {
            name: self._compute_part(name, logits, labels, sampled, segments, weights, reduction)
            for name in self.weights
        }
        loss = sum(weight * parts[name] for name, weight in self.weights.items())
        scored, weights = prepare_weights(labels, weights, self.ignore_index)
        tokens = count_labels(scored, weights, self.ignore_index)
        parts = {name: part.detach() for name, part in parts.items()}
        return ObjectiveOutput(loss, parts, tokens)

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
        """Compute the fused linear loss: the loss of `forward`, without a tensor of all logits.

        hidden: (B, N, D); weight, bias: the language head's, (V, D) and (V,) or None. With
        z = hidden @ weight.T + bias, logits are scale * z, or softcap * tanh(scale * z / softcap)
        if there is a softcap. Other arguments are as in `forward`. Loss and gradients equal those
        of `forward` up to rounding. Second derivatives are not supported. Under autocast, z has
        autocast's dtype. Hidden states at positions with the label `ignore_index` are not read. A
        weight that is a DTensor with sharded rows is not gathered; see `smile.sharded`.
        """
        check_reduction(reduction)
        vocabulary = len(weight)
        hidden, weight, bias, shards = self._local_tensors(hidden, weight, bias)
        if shards is not None:
            labels, segments, weights = (
                x.full_tensor() if is_distributed(x) else x for x in (labels, segments, weights)
            )
        if hidden.shape[:2] != labels.shape:
            raise ValueError(
                f"hidden is {tuple(hidden.shape)}, but labels is {tuple(labels.shape)}; "
                "give a hidden state for each label"
            )
        labels, weights = prepare_weights(labels, weights, self.ignore_index)
        if segments is not None:
            check_segments(segments, labels)
        check_labels(labels, vocabulary, self.ignore_index)
        needs_grad = [
            x is not None and x.requires_grad and torch.is_grad_enabled()
            for x in (hidden, weight, bias)
        ]
        dtype = compute_dtype(hidden)
        factors = None
        # This imports torch's compiler, which takes seconds.
        from smile.operator import mixture_from_hidden

        def mixture(settings, **batch):
            inputs = LossInputs(settings, dtype, needs_grad, labels, shards=shards, **batch)
            return mixture_from_hidden(hidden, weight, bias, inputs)

        if "truncation" in self.weights:  # its factors depend on MLE's losses: compute them first
            settings = Settings({"mle": 1.0}, self.ignore_index, "none", scale, softcap)
            with torch.no_grad():
                losses, _ = mixture(settings)
            factors = self._truncation_factors(losses, labels, segments, weights)
        loss, parts = mixture(
            self._settings(reduction, scale, softcap),
            sampled=self._sample_tokens(labels, vocabulary),
            segments=segments,
            weights=weights,
            factors=factors,
        )
        parts = dict(zip(self.weights, parts.unbind()))
        return ObjectiveOutput(loss, parts, count_labels(labels, weights, self.ignore_index))

    def _settings(self, reduction: str, scale: float, softcap: Optional[float]) -> Settings:
        return Settings(
            self.weights,
            self.ignore_index,
            reduction,
            scale,
            softcap,
            self.label_smoothing,
            self.first_token_mle,
            self.pad_token_id,
            self.alternatives_text,
        )

    def _local_tensors(self, hidden, weight, bias):
        """Return plain tensors and `Shards`, which are None if no argument is a DTensor.

        Raises ValueError if a loss needs all logits, which no process of a sharded head has.
        """
        if not any(map(is_distributed, (hidden, weight, bias))):
            return hidden, weight, bias, None
        from smile.sharded import to_local_tensors

        for name, loss in self.alternatives.items():
            if loss.reads_logits:
                raise ValueError(
                    f"objective {name!r} reads all logits of a position, which a sharded head "
                    "never has; compute it from logits, or use another objective"
                )
        return to_local_tensors(hidden, weight, bias)

    def with_tokens(self, pad_token_id: int, eos_token_id: int) -> "Objective":
        """Return a copy with a tokenizer's token ids. An `eos_token_id` in the spec is kept."""
        objective = copy.deepcopy(self)
        objective.pad_token_id = pad_token_id
        selective = objective.alternatives.get("selective_eos")
        if selective and selective.eos_token_id is None:
            selective = replace(selective, eos_token_id=eos_token_id)
            objective._set_alternatives({**objective.alternatives, "selective_eos": selective})
        return objective

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: truncation's window of mean losses, otherwise {}."""
        return self.means.state() if self.means is not None else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load what `state` returned. Raises ValueError if the saved window has another size."""
        if self.means is not None and state:
            self.means.restore(state)

    def _truncation_factors(self, losses, labels, segments, weights) -> Tensor:
        """Return truncation's factors (B, N). losses: MLE's, (B, N). Only training uses `means`."""
        means = self.means if self.training and torch.is_grad_enabled() else None
        truncation = self.alternatives["truncation"]
        return truncation.factors(losses, labels, segments, weights, self.ignore_index, means)

    def _sample_tokens(self, labels: Tensor, vocabulary: int) -> Optional[Tensor]:
        """Sample the tokens (B, N, R) of random subsetting. None without this objective."""
        if "random" not in self.weights:
            return None
        shape = (*labels.shape, self.random_subset_size)
        return torch.randint(vocabulary, shape, device=labels.device)

    def _compute_part(self, name, logits, labels, sampled, segments, weights, reduction) -> Tensor:
        """Return the reduced loss of the objective `name`. sampled: see `_sample_tokens`."""
        ignore = self.ignore_index
        options = {"ignore_index": ignore, "reduction": reduction, "weights": weights}
        if name == "mle":
            return mle_loss(logits, labels, label_smoothing=self.label_smoothing, **options)
        if name == "truncation":
            labels, weights = prepare_weights(labels, weights, ignore)
            losses = mle_loss(logits, labels, ignore, reduction="none")
            losses = losses * self._truncation_factors(losses, labels, segments, weights)
            return reduce_losses(losses, labels, ignore, reduction, weights)
        options["segments"] = segments
        if name in self.alternatives:
            loss_fn = functools.partial(self.alternatives[name].caption_losses, ignore_index=ignore)
            return reduce_by_caption(loss_fn, (logits,), labels, **options)
        options["first_token_mle"] = scores_first_token(name, self.first_token_mle)
        if name == "smile":
            return smile_loss(logits, labels, **options)
        options["pad_token_id"] = self.pad_token_id
        if name == "reverse":
            return reverse_subset_loss(logits, labels, **options)
        return random_subset_loss(logits, labels, sampled, **options)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}: {weight:g}" for name, weight in self.weights.items())
