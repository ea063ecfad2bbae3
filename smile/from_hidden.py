"""Computes the fused linear loss: a mixture of objectives without a tensor of all logits.

`smile_loss`, `random_subset_loss`, `reverse_subset_loss` and `mle_loss` define the losses.

SMILE and random subsetting need the logits of only a few tokens per position. This module gathers
the rows of the head's weight for these tokens, and computes the loss as if these tokens were the
whole vocabulary. MLE, reverse subsetting, the alternatives and first-token MLE need the logits of
the whole vocabulary. Their losses are computed in chunks of positions. The gradient of a chunk is
accumulated before the chunk's logits are freed, as in the fused cross-entropy of Liger-Kernel
(arXiv 2410.10989).
"""

import ast
from pkgutil import resolve_name
from typing import NamedTuple, Optional

import torch
from torch import Tensor

from smile.alternatives import ALTERNATIVES
from smile.captions import caption_blocks
from smile.head import Head, enable_autograd, slices
from smile.labels import caption_types, count_labels, first_labelled, reduce_losses
from smile.mixture import LossInputs, scores_first_token
from smile.position_logits import EarlierTokens, PositionLogits, earlier_tokens
from smile.smile import smile_loss
from smile.subsetting import random_subset, random_subset_losses, reverse_excluded_tokens


class FusedLoss(NamedTuple):
    """The result of `fused_loss`.

    loss: a scalar, or (B, N) with reduction "none". parts: (K,) or (K, B, N), the loss of each of
    the K objectives, not multiplied by the objective's weight. gradients: those of the hidden
    states, the head's weight and the head's bias. A gradient that is not needed is None.
    """

    loss: Tensor
    parts: Tensor
    gradients: tuple[Optional[Tensor], ...]


def fused_loss(
    hidden: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    inputs: LossInputs,
    d_loss: Optional[Tensor] = None,
) -> FusedLoss:
    """Compute the loss and its gradients.

    hidden: (B, N, D). weight, bias: the head's, (V, D) and (V,) or None. d_loss: the gradient that
    backpropagation passes to the loss; None in the forward pass, where it counts as 1. If
    `inputs.defer_grad` is true, the forward pass returns None for all three gradients, and the
    backward pass calls this function again.
    """
    labels = inputs.labels
    settings = inputs.settings
    needs_grad = inputs.needs_grad
    sampled = inputs.sampled
    head_class = Head
    if d_loss is None:
        d_loss = 1.0
        needs_grad = [needed and not inputs.defer_grad for needed in needs_grad]
    if inputs.shards is not None:
        from smile.sharded import ShardedHead

        head_class = ShardedHead
        sampled = inputs.shards.sync_samples(labels, sampled)
    head = head_class(hidden.flatten(0, 1), weight, bias, inputs, needs_grad)
    with torch.autocast(hidden.device.type, enabled=False):
        accumulator = _LossAccumulator(head, inputs, d_loss * _token_gradients(inputs, head))
        # `caption_blocks` must not cut rows off, as reverse subsetting reads whether they end in
        # padding.
        whole_rows = "reverse" in settings.weights
        ignore = settings.ignore_index
        for positions, block_labels in caption_blocks(labels, inputs.segments, ignore, whole_rows):
            accumulator.add_whole_vocabulary(positions, block_labels)
            if "smile" in settings.weights:
                accumulator.add_smile(positions, block_labels)
            if "random" in settings.weights:
                accumulator.add_random(positions, block_labels, sampled)
    parts = []
    for name, losses in accumulator.token_losses.items():
        losses = losses[:-1].view_as(labels)
        if name == "truncation":
            losses = losses * inputs.factors
        parts.append(reduce_losses(losses, labels, ignore, settings.reduction, inputs.weights))
    loss = sum(share * part for share, part in zip(settings.weights.values(), parts))
    d_hidden = head.d_hidden
    if d_hidden is not None:
        d_hidden = head.sum_shards(d_hidden).view(hidden.shape)
    return FusedLoss(loss, torch.stack(parts), (d_hidden, head.d_weight, head.d_bias))


def _token_gradients(inputs: LossInputs, head: Head) -> Tensor:
    """Return the gradient (B, N) of the reduced loss with respect to each token's loss."""
    labels = inputs.labels
    weights = inputs.weights
    if weights is None:
        gradients = torch.ones(labels.shape, dtype=head.wide_dtype, device=labels.device)
    else:
        gradients = weights.to(head.wide_dtype)
    if inputs.settings.reduction == "mean":
        divisor = count_labels(labels, weights, inputs.settings.ignore_index)
        gradients = gradients / divisor.masked_fill(divisor == 0, 1)
    return gradients


class _Chunk(NamedTuple):
    """R positions whose logits of the whole vocabulary are computed together.

    positions: (R,), indices in the flattened batch. label, is_first: (R,). excluded: (R, E), the
    tokens that reverse subsetting leaves out of its softmax; E is 0 without it. earlier: the
    earlier tokens of each position, each field (R, L), also `types`; None if no alternative looks
    back.
    """

    positions: Tensor
    label: Tensor
    is_first: Tensor
    excluded: Tensor
    earlier: Optional[EarlierTokens]


class _Leaves(NamedTuple):
    """The values of R positions from which losses are computed, for which autograd is used.

    `caption_logits`, `logits` and `subset` are None if no objective needs them.

    label: (R, 1), the label's logit. total: (R, 1), the logsumexp of all logits. caption_logits:
    (R, L), the logits of the caption's tokens. logits: (R, V), all logits. subset: (R, 1), the
    logsumexp of the tokens that reverse subsetting keeps.
    """

    label: Tensor
    total: Tensor
    caption_logits: Optional[Tensor]
    logits: Optional[Tensor]
    subset: Optional[Tensor]


class _LossAccumulator:
    """Computes the objectives block by block. The head accumulates the gradients.

    `token_losses[name]` (B * N + 1,) has the loss of each token for the objective `name`. d_losses:
    (B, N), the gradient of the reduced loss with respect to each token's loss, where a token's loss
    is the weighted sum over objectives.
    """

    def __init__(self, head: Head, inputs: LossInputs, d_losses: Tensor):
        self.head = head
        self.settings = inputs.settings
        objectives = inputs.settings.weights
        self.label_smoothing = self.settings.label_smoothing if "mle" in objectives else 0.0
        self.first_token_mle_names = [
            name for name in objectives if scores_first_token(name, self.settings.first_token_mle)
        ]
        self.alternatives = {
            name: resolve_name(ALTERNATIVES[name])(**parameters)
            for name, parameters in ast.literal_eval(self.settings.alternatives_text).items()
        }
        self.looks_back = any(loss.looks_back for loss in self.alternatives.values())
        self.factors = inputs.factors
        self.row_padding = self.settings.pad_token_id if inputs.segments is None else None
        self.d_losses = {name: weight * d_losses.flatten() for name, weight in objectives.items()}
        if inputs.factors is not None:
            self.d_losses["truncation"] *= inputs.factors.flatten()
        # The extra last element receives the losses of positions that are not scored.
        self.token_losses = {name: d_losses.new_zeros(d_losses.numel() + 1) for name in objectives}

    def add_whole_vocabulary(self, positions: Tensor, labels: Tensor) -> None:
        """Add losses that need all logits: MLE, reverse subsetting, alternatives, first-token MLE.

        positions, labels: (C, L), one caption per row; see `caption_blocks`.
        """
        ignore = self.settings.ignore_index
        selected = labels != ignore
        is_first = first_labelled(labels, ignore) & bool(self.first_token_mle_names)
        if self.token_losses.keys() <= {"smile", "random"}:
            selected = is_first
        elif self.token_losses.keys() == {"truncation"}:
            selected = selected & (self.factors.flatten()[positions] != 0)
        selected = selected.flatten().nonzero().squeeze(1)  # (M,)
        caption = selected.div(labels.size(1), rounding_mode="floor")
        excluded = labels[:, :0]
        if "reverse" in self.token_losses:
            excluded = reverse_excluded_tokens(labels, ignore, self.row_padding)
        earlier = earlier_tokens(labels, ignore) if self.looks_back else None
        for part in slices(len(selected), self.head.chunk_positions):
            indices = selected[part]
            own_earlier = None
            if earlier is not None:
                own_earlier = EarlierTokens(
                    earlier.types[caption[part]],
                    earlier.is_earlier[indices],
                    earlier.is_label[indices],
                )
            self._add_chunk(
                _Chunk(
                    positions.flatten()[indices],
                    labels.flatten()[indices],
                    is_first.flatten()[indices],
                    excluded[caption[part]],
                    own_earlier,
                )
            )

    def _add_chunk(self, chunk: _Chunk) -> None:
        """Add the losses of a chunk.

        Each loss is a function of the `_Leaves`. Autograd computes the gradients of the leaves.
        From these, `_logit_gradients` computes the gradient of the logits without autograd.
        """
        head = self.head
        label_column = chunk.label.unsqueeze(1)
        logits, slope = head.logits(chunk.positions)  # (R, V)
        label_logit = head.gather_logits(logits, label_column)
        caption_logits = logits_copy = subset = subset_total = None
        if chunk.earlier is not None:
            caption_logits = head.gather_logits(logits, chunk.earlier.types)
        mean = head.mean(logits).squeeze(1) if self.label_smoothing else None
        if any(loss.reads_logits for loss in self.alternatives.values()):
            logits_copy = logits.clone()
        if "reverse" in self.token_losses:
            subset = head.exclude(logits, chunk.excluded, label_column)
            subset_total = head.softmax_(subset)
        total = head.softmax_(logits)
        leaves = _Leaves(label_logit, total, caption_logits, logits_copy, subset_total)
        inputs = [value.requires_grad_(head.has_grads) for value in leaves if value is not None]
        with enable_autograd():
            losses = self._compute_losses(leaves, mean, chunk)
            loss_sum = sum(
                (self.d_losses[name][chunk.positions] * loss).sum() for name, loss in losses.items()
            )
        for name, loss in losses.items():
            self.token_losses[name][chunk.positions] = loss.detach()
        if head.has_grads:
            gradients = iter(torch.autograd.grad(loss_sum, inputs, materialize_grads=True))
            d_leaves = _Leaves(*(None if value is None else next(gradients) for value in leaves))
            d_logits = self._logit_gradients(chunk, d_leaves, logits, subset)
            head.backward(chunk.positions, d_logits, slope)

    def _logit_gradients(
        self, chunk: _Chunk, d_leaves: _Leaves, probabilities, subset_probabilities
    ) -> Tensor:
        """Return the gradient of the logits (R, V). Overwrites the probabilities (R, V).

        d_leaves: the gradients of the leaves. probabilities, subset_probabilities: the softmax of
        all logits, and that of reverse subsetting or None.

        A logsumexp contributes its softmax times the gradient of the logsumexp. A leaf that holds
        logits contributes its gradient at these logits.
        """
        head = self.head
        d_logits = probabilities.mul_(d_leaves.total)
        if subset_probabilities is not None:
            d_logits += subset_probabilities.mul_(d_leaves.subset)
        if self.label_smoothing:
            d_mle = self.d_losses["mle"][chunk.positions].unsqueeze(1)
            d_mean = self.label_smoothing / head.unmasked_count * d_mle
            head.subtract_unmasked_(d_logits, d_mean)
        head.scatter_add_(d_logits, chunk.label.unsqueeze(1), d_leaves.label)
        if chunk.earlier is not None:
            head.scatter_add_(d_logits, chunk.earlier.types, d_leaves.caption_logits)
        if d_leaves.logits is not None:
            d_logits += d_leaves.logits
        return d_logits

    def _compute_losses(self, leaves: _Leaves, mean, chunk: _Chunk) -> dict[str, Tensor]:
        """Return the losses (R,) of each objective that needs all logits.

        mean: (R,), the mean logit for label smoothing, or None; `_logit_gradients` adds the
        gradient of the mean.
        """
        target = leaves.label.squeeze(1)
        total = leaves.total.squeeze(1)
        mle = total - target
        losses = {}
        for name in self.token_losses:
            loss = self.alternatives.get(name)
            if name == "mle" and mean is not None:
                smoothing = self.label_smoothing
                losses[name] = total - (1 - smoothing) * target - smoothing * mean
            elif name in ("mle", "truncation"):
                losses[name] = mle
            elif name == "reverse":
                losses[name] = leaves.subset.squeeze(1) - target
            elif loss is not None and loss.reads_logits:
                losses[name] = loss.losses(leaves.logits, chunk.label)
            elif loss is not None:
                losses[name] = loss.losses(
                    PositionLogits(total, target, leaves.caption_logits, chunk.earlier)
                )
            if name in self.first_token_mle_names:
                losses[name] = mle.where(chunk.is_first, losses.get(name, 0))
        return losses

    def add_smile(self, positions: Tensor, labels: Tensor) -> None:
        """Add SMILE's losses, except of first tokens that MLE scores in `add_whole_vocabulary`.

        positions, labels: (C, L), one caption per row; see `caption_blocks`.
        """
        ignore = self.settings.ignore_index
        length = labels.size(1)
        types, _ = caption_types(labels, ignore)  # (C, L)
        # The label's index among the gathered logits is the first column with the label's id.
        columns = (types.unsqueeze(2) == types.unsqueeze(1)).int().argmax(2)
        columns = columns.masked_fill(labels == ignore, -100)  # the default of `smile_loss`
        # The larger of the two gathered tensors, weights (L, D) or logits (L, L); times 2, because
        # its gradient has the same size.
        size = 2 * length * max(length, self.head.hidden.size(1))

        def loss_fn(logits, chunk):  # (c, L, L)
            return smile_loss(logits, columns[chunk], reduction="none")

        self._add_gathered(
            "smile",
            positions,
            types,
            is_scored=self._scored_by_subset("smile", labels),
            elements_per_group=size,
            loss_fn=loss_fn,
        )

    def add_random(self, positions: Tensor, labels: Tensor, sampled: Tensor) -> None:
        """Add random subsetting's losses, except of first tokens that MLE scores.

        positions, labels: as in `add_smile`. sampled: (B, N, R), the random tokens of each label.
        """
        is_scored = self._scored_by_subset("random", labels)  # (C, L)
        positions, labels = positions[is_scored], labels[is_scored]  # (M,) each
        sampled = sampled.flatten(0, 1)[positions]  # (M, R)
        tokens, repeated = random_subset(labels, sampled, self.settings.pad_token_id)  # (M, 1 + R)

        def loss_fn(logits, chunk):  # (m, 1, 1 + R)
            return random_subset_losses(logits, repeated[chunk].unsqueeze(1))

        positions = positions.unsqueeze(1)
        self._add_gathered(
            "random",
            positions,
            tokens,
            is_scored=torch.ones_like(positions, dtype=torch.bool),
            elements_per_group=2 * tokens.size(1) * self.head.hidden.size(1),
            loss_fn=loss_fn,
        )

    def _add_gathered(self, name, positions, tokens, is_scored, elements_per_group, loss_fn):
        """Add the losses of the objective `name`, which needs only the logits of `tokens` (G, J).

        Each of the G groups has R positions, which need the logits of the same J tokens. A group is
        a caption for SMILE, and a single position for random subsetting. positions: (G, R), the
        positions of each group. is_scored: bool (G, R), whether to score each position.
        elements_per_group: the elements in memory for one group, by which groups are put in chunks.
        loss_fn: maps a chunk's logits (g, R, J), and the slice of its g groups, to losses (g, R).
        """
        d_losses = self.d_losses[name]
        for chunk in slices(len(positions), self.head.chunk_elements // elements_per_group):
            read, chunk_tokens, chunk_is_scored = positions[chunk], tokens[chunk], is_scored[chunk]
            # Hidden states at padding may be nan, which gradients of 0 would not remove.
            hidden = self.head.hidden[read].masked_fill_(~chunk_is_scored.unsqueeze(2), 0)
            logits, slope = self.head.logits_grouped(hidden, chunk_tokens)
            with enable_autograd():
                losses = loss_fn(logits.requires_grad_(self.head.has_grads), chunk)
            self.token_losses[name][read.where(chunk_is_scored, -1)] = losses.detach()
            if self.head.has_grads:
                (d_logits,) = torch.autograd.grad(losses, logits, chunk_is_scored.to(losses.dtype))
                d_logits.mul_(d_losses[read].unsqueeze(2))
                self.head.backward_grouped(read, hidden, chunk_tokens, d_logits, slope)

    def _scored_by_subset(self, name: str, labels: Tensor) -> Tensor:
        """Return bool (C, L): labelled positions, except first tokens that are scored by MLE."""
        ignore = self.settings.ignore_index
        is_first = first_labelled(labels, ignore) & (name in self.first_token_mle_names)
        return (labels != ignore) & ~is_first
