"""A weighted mixture of objectives, as a run's `objective:` names it."""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional, Union

import torch
from torch import Tensor, nn

from smile.captions import check_segments
from smile.head import Transform
from smile.labels import check_labels, check_reduction, count, weigh
from smile.mixture import Mixture
from smile.mle import mle_loss
from smile.operator import mixture_from_hidden
from smile.sharded import is_distributed, on_one_process, whole
from smile.smile import smile_loss
from smile.subsetting import random_subset_loss, reverse_subset_loss

OBJECTIVES = ("mle", "smile", "random", "reverse")


class ObjectiveOutput(NamedTuple):
    """What a captioner's forward returns.

    loss: the weighted sum, mean over labelled tokens unless another reduction was asked for.
    parts: each objective by name, unweighted, reduced likewise, detached. tokens: the number of
    labelled tokens, int64 scalar; with weights of tokens their sum.
    """

    loss: Tensor
    parts: dict[str, Tensor]
    tokens: Tensor


def captions_an_image(captions: Sequence[Sequence[str]], images: int) -> int:
    """k of a batch of `images` groups of k captions. Raises ValueError where they do not match."""
    counts = [len(group) for group in captions]
    if not counts or 0 in counts or counts != counts[:1] * images:
        raise ValueError(f"{counts} captions for {images} images; each needs as many, at least one")
    return counts[0]


def parse_objective(spec: Union[str, Mapping[str, float]]) -> dict[str, float]:
    """Weights by name from a single name or from a mapping such as {mle: 0.01, smile: 0.99}.

    Raises ValueError, in one line, for an unknown name or a weight that is not a positive number.
    """
    weights = {spec: 1.0} if isinstance(spec, str) else dict(spec)
    if not weights:
        raise ValueError(f"objective is empty; name one or more of {', '.join(OBJECTIVES)}")
    for name, weight in weights.items():
        if name not in OBJECTIVES:
            raise ValueError(f"objective {name!r} is unknown; choose from {', '.join(OBJECTIVES)}")
        number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
        if not number or not math.isfinite(weight) or weight <= 0:
            raise ValueError(f"objective {name!r} has weight {weight!r}; give a number above 0")
    return {name: float(weight) for name, weight in weights.items()}


class Objective(nn.Module):
    """The loss that a captioner minimises: `weights` over MLE, SMILE and its two ablations.

    label_smoothing applies to `mle` alone; first_token_mle to the three others; the words of
    `random` are drawn from torch's global generator, never `pad_token_id`.
    """

    def __init__(
        self,
        spec: Union[str, Mapping[str, float]] = "smile",
        label_smoothing: float = 0.1,
        first_token_mle: bool = True,
        random_subset_size: int = 10,
        pad_token_id: Optional[int] = None,
        ignore_index: int = -100,
    ):
        super().__init__()
        self.weights = parse_objective(spec)
        self.label_smoothing = label_smoothing
        self.first_token_mle = first_token_mle
        self.random_subset_size = random_subset_size
        self.pad_token_id = pad_token_id
        self.ignore_index = ignore_index

    def forward(
        self,
        logits: Tensor,
        labels: Tensor,
        segments: Optional[Tensor] = None,
        weights: Optional[Tensor] = None,
        reduction: str = "mean",
    ) -> ObjectiveOutput:
        """logits: (B, N, V), any float type; labels: int64 (B, N) with `ignore_index`.

        Segments, weights and reduction are those of `smile_loss`. This is the definition;
        `from_hidden` gives the same with less. On a CPU a label that is no word of the head raises
        ValueError.
        """
        logits = whole(logits)
        words = self._draw(labels, logits.size(2))
        how = {"reduction": reduction, "weights": weights}
        parts = {
            name: self._part(name, logits, labels, words, segments, how) for name in self.weights
        }
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
        """What `forward` gives for logits made of hidden states, which are never all there.

        hidden: (B, N, D); weight: (V, D); bias: (V,) or None. Logits are z = hidden @ weight.T +
        bias times `scale`, and with a cap softcap * tanh(scale * z / softcap). The rest is as in
        `forward`. Gradients are the same up to rounding; under autocast z is computed in its dtype
        there and here. Hidden states whose label is `ignore_index` are not looked at. Gradients of
        gradients are not to be had. DTensors are taken as `smile.sharded` says: a weight whose rows
        are divided stays so.
        """
        check_reduction(reduction)
        vocabulary, shards = len(weight), None
        if any(map(is_distributed, (hidden, weight, bias))):
            hidden, weight, bias, shards = on_one_process(hidden, weight, bias)
            each = (labels, segments, weights)
            labels, segments, weights = (x.full_tensor() if is_distributed(x) else x for x in each)
        if hidden.shape[:2] != labels.shape:
            raise ValueError(
                f"hidden is {tuple(hidden.shape)}, but labels is {tuple(labels.shape)}; "
                "give a hidden state for each label"
            )
        labels, weights = weigh(labels, weights, self.ignore_index)
        if segments is not None:
            check_segments(segments, labels)
        check_labels(labels, vocabulary, self.ignore_index)
        without_gradient = (labels, self._draw(labels, vocabulary), segments, weights)
        mixture = Mixture(*(getattr(self, name) for name in Mixture._fields))
        how = (mixture, reduction, Transform(scale, softcap), shards)
        loss, values = mixture_from_hidden(hidden, weight, bias, *without_gradient, *how)
        parts = dict(zip(self.weights, values.unbind()))
        return ObjectiveOutput(loss, parts, count(labels, weights, self.ignore_index))

    def with_pad_token(self, pad_token_id: int) -> "Objective":
        """The same objective for a tokeniser whose padding is `pad_token_id`."""
        own = copy.deepcopy(self)
        own.pad_token_id = pad_token_id
        return own

    def _draw(self, labels: Tensor, vocabulary: int) -> Optional[Tensor]:
        """The words (B, N, R) of random subsetting, if there is any."""
        if "random" not in self.weights:
            return None
        drawn = (*labels.shape, self.random_subset_size)
        return torch.randint(vocabulary, drawn, device=labels.device)

    def _part(self, name, logits, labels, words, segments, how) -> Tensor:
        if name == "mle":
            return mle_loss(logits, labels, self.ignore_index, self.label_smoothing, **how)
        how = {"segments": segments, **how}
        if name == "smile":
            return smile_loss(logits, labels, self.ignore_index, self.first_token_mle, **how)
        subset = (self.ignore_index, self.first_token_mle, self.pad_token_id)
        if name == "reverse":
            return reverse_subset_loss(logits, labels, *subset, **how)
        return random_subset_loss(logits, labels, words, *subset, **how)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}: {weight:g}" for name, weight in self.weights.items())
