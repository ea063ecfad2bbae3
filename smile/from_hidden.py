"""The fused linear loss: a mixture of objectives without a tensor of all logits.

`smile_loss`, `random_subset_loss`, `reverse_subset_loss` and `mle_loss` define the losses.

SMILE and random subsetting need the logits of only a few tokens per position. The rows of the head
for these tokens are gathered, and the definitions compute the losses in a vocabulary of these
tokens. MLE, reverse subsetting and first tokens need the whole vocabulary. They are computed in
chunks of positions. The gradient of a chunk is accumulated before its logits are freed, as in the
fused cross-entropy of Liger-Kernel (arXiv 2410.10989).
"""

from collections.abc import Callable
from typing import Optional

import torch
from torch import Tensor

from smile.captions import blocks
from smile.head import POSITIONS, Head, Transform, recorded, slices
from smile.labels import caption_types, count, earlier_words, first_labelled, reduce
from smile.loading import load
from smile.mixture import LossInputs, build_alternatives, scores_first_token
from smile.smile import smile_loss
from smile.subsetting import random_subset_loss, reverse_subset_excludes

IGNORED = -100  # the ignore_index of labels that number a caption's tokens


def fused_loss(
    hidden: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    inputs: LossInputs,
    d_loss: Optional[Tensor] = None,
):
    """The loss, a scalar or (B, N), its parts (len(weights), ...), and three gradients.

    The gradients of hidden, weight and bias are for the given gradient of the loss. Without it they
    are for 1, or None if they are deferred to the backward pass. A gradient that is not wanted is
    None.
    """
    labels, words, segments, weights, factors, settings, dtype, wanted, shards = inputs
    if d_loss is None:
        d_loss, wanted = 1.0, [want and not inputs.defer_grad for want in wanted]
    transform = Transform(settings.scale, settings.softcap)
    head = (hidden.flatten(0, 1), weight, bias, transform, dtype, wanted)
    if shards is None:
        head = Head(*head)
    else:
        words = shards.agree(labels, words)
        head = load("smile.sharded:ShardedHead")(shards, *head)
    reduction = (labels, settings.ignore_index, settings.reduction, weights)
    with torch.autocast(hidden.device.type, enabled=False):
        d_losses = torch.ones(labels.shape, dtype=head.wide, device=labels.device)
        if weights is not None:
            d_losses = weights.to(head.wide)
        if settings.reduction == "mean":
            tokens = count(labels, weights, settings.ignore_index)
            d_losses = d_losses / tokens.masked_fill(tokens == 0, 1)
        losses = _Losses(head, inputs, d_losses * d_loss)
        # Reverse subsetting needs whole rows: it checks whether a row is padded at its end.
        reverse = "reverse" in settings.weights
        for rows, block_labels in blocks(labels, segments, settings.ignore_index, reverse):
            losses.add_whole_vocabulary(rows, block_labels)
            if "smile" in settings.weights:
                losses.add_smile(rows, block_labels)
            if "random" in settings.weights:
                losses.add_random(rows, block_labels, words)
    by_name = {name: each[:-1].view_as(labels) for name, each in losses.of.items()}
    if factors is not None:
        by_name["truncation"] = by_name["truncation"] * factors
    parts = torch.stack([reduce(each, *reduction) for each in by_name.values()])
    loss = sum(weight * part for weight, part in zip(settings.weights.values(), parts))
    d_hidden = head.d_hidden
    if d_hidden is not None:
        d_hidden = head.sum_shards(d_hidden).view(hidden.shape)
    return loss, parts, (d_hidden, head.d_weight, head.d_bias)


class _Losses:
    """Losses of tokens by objective, `of[name]` (B * N + 1,), computed block by block.

    The head accumulates the gradients.

    d_losses: (B, N), the gradient of the weighted sum of each token's losses.
    """

    def __init__(self, head: Head, inputs: LossInputs, d_losses: Tensor):
        self.head, self.settings, weights = head, inputs.settings, inputs.settings.weights
        first = self.settings.first_token_mle
        self.first_by_mle = [name for name in weights if scores_first_token(name, first)]
        built = build_alternatives(self.settings.alternatives_text)
        self.alternatives = {k: v for k, v in built.items() if k in weights and k != "truncation"}
        self.looks_back = any(loss.looks_back for loss in self.alternatives.values())
        self.factors = inputs.factors
        self.padding = self.settings.pad_token_id if inputs.segments is None else None
        self.d_losses = {name: weight * d_losses.flatten() for name, weight in weights.items()}
        if inputs.factors is not None:
            self.d_losses["truncation"] *= inputs.factors.flatten()
        # Losses of positions that are not scored are written to the last element.
        self.of = {name: d_losses.new_zeros(d_losses.numel() + 1) for name in weights}

    def add_whole_vocabulary(self, rows: Tensor, labels: Tensor) -> None:
        """Add losses that need all logits: MLE, reverse subsetting, alternatives, first-token MLE.

        rows, labels: (C, L), one caption per row; see `blocks`.
        """
        ignore = self.settings.ignore_index
        chosen = labels != ignore
        first = first_labelled(labels, ignore) & bool(self.first_by_mle)
        if {"smile", "random"}.issuperset(self.of):
            chosen = first
        elif self.of.keys() == {"truncation"}:
            chosen = chosen & (self.factors.flatten()[rows] != 0)
        chosen = chosen.flatten().nonzero().squeeze(1)  # (M,)
        caption = chosen.div(labels.size(1), rounding_mode="floor")
        excluded = reverse_subset_excludes(labels, ignore, self.padding)
        earlier = earlier_words(labels, ignore) if self.looks_back else ()
        for chunk in slices(len(chosen), POSITIONS["cpu" if labels.is_cpu else "cuda"]):
            at, of_caption = chosen[chunk], caption[chunk]
            label, is_first, row = (x.flatten()[at] for x in (labels, first, rows))
            words, *which = earlier or (None,)
            words = None if words is None else words[of_caption]
            which = [x.flatten(0, 1)[at] for x in which]
            self._add_chunk(row, label, is_first, excluded[of_caption], words, which)

    def _add_chunk(self, rows, label, is_first, excluded, words, which):
        """Add the losses of `rows` (R,), positions in the flattened batch.

        label, is_first: (R,). excluded: (R, .), the tokens that are not in the subset of reverse
        subsetting. words: (R, L), the captions' tokens, and `which`, two masks (R, L) of them, for
        alternatives that look back.

        All losses are functions of a few values per position, such as the logsumexp of all logits.
        Autograd differentiates these functions. The gradient of the logits is then each softmax
        times the gradient of its logsumexp, plus the gradients of single tokens.
        """
        head, column = self.head, label.unsqueeze(1)
        logits, slope = head.logits(rows)  # (R, V)
        known = {"label": head.pick(logits, column)}  # (R, 1)
        if words is not None:
            known["earlier"] = head.pick(logits, words)
        smoothing = self.settings.label_smoothing if "mle" in self.of else 0.0
        mean = head.mean(logits).squeeze(1) if smoothing else None
        if any(loss.reads_logits for loss in self.alternatives.values()):
            known["logits"] = logits.clone()
        if "reverse" in self.of:
            subset = head.without(logits, excluded, column, known["label"])
            known["subset"] = head.softmax_(subset)
        known["total"] = head.softmax_(logits)
        for value in known.values():
            value.requires_grad_(head.differentiate)
        with recorded():
            losses = self._formulas(known, mean, label, is_first, which)
            total = sum((self.d_losses[name][rows] * each).sum() for name, each in losses.items())
        for name, each in losses.items():
            self.of[name][rows] = each.detach()
        if not head.differentiate:
            return
        gradients = torch.autograd.grad(total, [*known.values()], materialize_grads=True)
        d_known = dict(zip(known, gradients))
        d_logits = logits.mul_(d_known["total"])
        if "subset" in known:
            d_logits += subset.mul_(d_known["subset"])
        if smoothing:
            share = smoothing / head.possible * self.d_losses["mle"][rows].unsqueeze(1)
            head.subtract_(d_logits, share)
        head.add_(d_logits, column, d_known["label"])
        if words is not None:
            head.add_(d_logits, words, d_known["earlier"])
        if "logits" in known:
            d_logits += d_known["logits"]
        head.backward(rows, d_logits, slope)

    def _formulas(self, known, mean, label, is_first, which) -> dict[str, Tensor]:
        """The losses (R,) of each objective that needs all logits.

        mean: (R,), of all logits, for label smoothing. Its gradient is added in `_add_chunk`.
        """
        target, total = known["label"].squeeze(1), known["total"].squeeze(1)
        mle, losses = total - target, {}
        for name in self.of:
            loss = self.alternatives.get(name)
            if loss is not None and loss.reads_logits:
                losses[name] = loss.losses(known["logits"], label)
            elif loss is not None:
                losses[name] = loss.of_known(total, target, known.get("earlier"), *which)
            elif name == "truncation":
                losses[name] = mle
            elif name == "mle":
                losses[name] = mle
                if mean is not None:
                    smoothing = self.settings.label_smoothing
                    losses[name] = total - (1 - smoothing) * target - smoothing * mean
            elif name == "reverse":
                losses[name] = known["subset"].squeeze(1) - target
            if name in self.first_by_mle:
                losses[name] = mle.where(is_first, losses.get(name, 0))
        return losses

    def add_smile(self, rows: Tensor, labels: Tensor) -> None:
        """Add SMILE's losses, without first tokens scored by MLE. rows, labels: (C, L)."""
        ignore, length = self.settings.ignore_index, labels.size(1)
        types, _ = caption_types(labels, ignore)  # (C, L)
        # Labels in the vocabulary of the caption's types: the first column of a label's type.
        columns = (types.unsqueeze(2) == types.unsqueeze(1)).int().argmax(2)
        columns = columns.masked_fill(labels == ignore, IGNORED)
        size = 2 * length * max(length, self.head.hidden.size(1))  # rows of the weight, gradient

        def losses_of(logits, chunk):  # (c, L, L)
            return smile_loss(logits, columns[chunk], IGNORED, reduction="none")

        scored = self._scored("smile", labels)
        self._add_gathered("smile", rows, types, scored, size, losses_of)

    def add_random(self, rows: Tensor, labels: Tensor, words: Tensor) -> None:
        """Add random subsetting's losses, without first tokens scored by MLE."""
        chosen = self._scored("random", labels)  # (C, L)
        rows, label = rows[chosen].unsqueeze(1), labels[chosen].unsqueeze(1)  # (M, 1) each
        sampled = words.flatten(0, 1)[rows.squeeze(1)]  # (M, R)
        if self.settings.pad_token_id is not None:
            sampled = sampled.where(sampled != self.settings.pad_token_id, label)
        columns = torch.cat([label, sampled], dim=1)  # (M, 1 + R)
        same = (columns.unsqueeze(2) == columns.unsqueeze(1)).int().argmax(2)
        size = 2 * columns.size(1) * self.head.hidden.size(1)

        def losses_of(logits, chunk):  # (m, 1, 1 + R)
            # A token's id is the first column with this token. The label's id is 0.
            ids = same[chunk].unsqueeze(1)
            label, sampled = ids[..., 0], ids[..., 1:]
            return random_subset_loss(logits, label, sampled, IGNORED, reduction="none")

        scored = torch.ones_like(rows, dtype=torch.bool)
        self._add_gathered("random", rows, columns, scored, size, losses_of)

    def _add_gathered(
        self,
        name: str,
        rows: Tensor,
        words: Tensor,
        scored: Tensor,
        size: int,
        losses_of: Callable,
    ) -> None:
        """Add losses that need only the logits of `words` (G, J), one set of words per group.

        rows, scored: (G, R), the positions of each group, and which of them to score. losses_of:
        maps logits (g, R, J) and the slice of these groups to losses (g, R). size: elements per
        group, which limits the number of groups in a chunk.
        """
        d_losses, unscored = self.d_losses[name], len(self.of[name]) - 1
        for chunk in slices(len(rows), self.head.elements // size):
            logits, slope = self.head.logits_of(rows[chunk], words[chunk])
            is_scored = scored[chunk]
            with recorded():
                losses = losses_of(logits.requires_grad_(self.head.differentiate), chunk)
            self.of[name][rows[chunk].where(is_scored, unscored)] = losses.detach()
            if self.head.differentiate:
                (d_logits,) = torch.autograd.grad(losses, logits, is_scored.to(losses.dtype))
                d_logits.mul_(d_losses[rows[chunk]].unsqueeze(2))
                self.head.backward_of(rows[chunk], words[chunk], d_logits, slope)

    def _scored(self, name: str, labels: Tensor) -> Tensor:
        """bool (C, L): labelled positions without first tokens that the objective scores by MLE."""
        ignore = self.settings.ignore_index
        first = first_labelled(labels, ignore) & (name in self.first_by_mle)
        return (labels != ignore) & ~first
