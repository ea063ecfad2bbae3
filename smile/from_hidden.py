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

from smile.alternatives import load
from smile.captions import blocks
from smile.head import POSITIONS, Head, recorded, slices
from smile.labels import caption_types, count, first_labelled, reduce
from smile.mixture import LossInputs, Mixture
from smile.smile import smile_loss
from smile.subsetting import random_subset_loss, reverse_subset_excludes

IGNORED = -100  # the ignore_index of labels that number a caption's tokens


def loss_and_parts(hidden: Tensor, weight: Tensor, bias: Optional[Tensor], inputs: LossInputs):
    """The loss, a scalar or (B, N), its parts (len(weights), ...), and three gradients.

    The gradients of hidden, weight and bias are for a d_loss of 1. A gradient is None if it is not
    wanted or is deferred to the backward pass.
    """
    d_loss = 1.0 if any(inputs.wanted) and not inputs.defer_grad else None
    losses, gradients = losses_and_gradients(hidden, weight, bias, inputs, d_loss)
    reduction = (inputs.labels, inputs.mixture.ignore_index, inputs.reduction, inputs.weights)
    parts = torch.stack([reduce(each, *reduction) for each in losses])
    weights = inputs.mixture.weights.values()
    return sum(each * part for each, part in zip(weights, parts)), parts, gradients


def losses_and_gradients(hidden, weight, bias, inputs, d_loss):
    """The losses (B, N) of each objective, and the gradients of hidden, weight and bias.

    d_loss: the gradient of the reduced loss, a scalar or (B, N). If it is None, there are no
    gradients.
    """
    labels, words, settings, shards = inputs.labels, inputs.words, inputs.mixture, inputs.shards
    wanted = inputs.wanted if d_loss is not None else (False, False, False)
    head = (hidden.flatten(0, 1), weight, bias, inputs.transform, inputs.dtype, wanted)
    if shards is not None:
        words = shards.agree(labels, words)
    head = Head(*head) if shards is None else shards.head(*head)
    with torch.autocast(hidden.device.type, enabled=False):
        d_losses = torch.ones(labels.shape, dtype=head.wide, device=labels.device)
        if inputs.weights is not None:
            d_losses = inputs.weights.to(head.wide)
        if inputs.reduction == "mean":
            tokens = count(labels, inputs.weights, settings.ignore_index)
            d_losses = d_losses / tokens.masked_fill(tokens == 0, 1)
        if d_loss is not None:
            d_losses = d_losses * d_loss
        losses = _Losses(head, labels, settings, d_losses)
        # Reverse subsetting needs whole rows: it checks whether a row is padded at its end.
        reverse = "reverse" in settings.weights
        for rows, block_labels in blocks(labels, inputs.segments, settings.ignore_index, reverse):
            padding = settings.pad_token_id if inputs.segments is None else None
            losses.add_whole_vocabulary(rows, block_labels, padding)
            if "smile" in settings.weights:
                losses.add_smile(rows, block_labels)
            if "random" in settings.weights:
                losses.add_random(rows, block_labels, words)
    by_objective = [losses.of[name][:-1].view_as(labels) for name in settings.weights]
    d_hidden, d_weight, d_bias = head.gradients()
    d_hidden = None if d_hidden is None else d_hidden.view(hidden.shape)
    return by_objective, (d_hidden, d_weight, d_bias)


class _Losses:
    """Losses of tokens by objective, `of[name]` (B * N + 1,), computed block by block.

    The head accumulates the gradients.

    d_losses: (B, N), the gradient of each token's weighted sum.
    """

    def __init__(self, head: Head, labels: Tensor, mixture: Mixture, d_losses: Tensor):
        self.head, self.mixture, self.first_by_mle = head, mixture, mixture.first_by_mle()
        self.alternatives = None
        if mixture.alternatives():
            in_pieces = load("smile.alternatives.in_pieces:Alternatives")
            self.alternatives = in_pieces(mixture, head.differentiate)
        self.d_losses = d_losses.flatten()
        # Losses of positions that are not scored are written to the last element.
        self.of = {name: d_losses.new_zeros(labels.numel() + 1) for name in mixture.weights}

    def add_whole_vocabulary(self, rows: Tensor, labels: Tensor, padding: Optional[int]) -> None:
        """Add losses that need all logits: MLE, reverse subsetting, alternatives, first-token MLE.

        rows, labels: (C, L), one caption per row; see `blocks`.
        """
        mixture = self.mixture
        labelled = labels != mixture.ignore_index
        first = first_labelled(labels, mixture.ignore_index) & bool(self.first_by_mle)
        everywhere = not {"smile", "random"}.issuperset(mixture.weights)
        chosen = (labelled if everywhere else first).flatten().nonzero().squeeze(1)  # (M,)
        excluded = reverse_subset_excludes(labels, mixture.ignore_index, padding)
        label, is_first = (x.flatten()[chosen].unsqueeze(1) for x in (labels, first))  # (M, 1) each
        earlier = self.alternatives and self.alternatives.earlier(labels, chosen)
        caption = chosen.div(labels.size(1), rounding_mode="floor")
        chosen = rows.flatten()[chosen]
        for chunk in slices(len(chosen), POSITIONS["cpu" if labels.is_cpu else "cuda"]):
            columns = excluded[caption[chunk]]
            before = earlier and earlier._make(x[chunk] for x in earlier)
            self._add_chunk(chosen[chunk], label[chunk], is_first[chunk], columns, before)

    def _add_chunk(self, rows, label, is_first, excluded, earlier):
        """Add the losses of `rows` (R,), positions in the flattened batch.

        label, is_first: (R, 1). excluded: (R, .), the tokens that are not in the subset of reverse
        subsetting. earlier: the captions' earlier tokens, for alternatives that read them.
        """
        mle, reverse = (self.mixture.weights.get(name, 0.0) for name in ("mle", "reverse"))
        with_first = ("mle", *self.first_by_mle)
        firsts = sum(w for k, w in self.mixture.weights.items() if k in with_first) - mle
        smoothing = self.mixture.label_smoothing if mle else 0.0
        logits, slope = self.head.logits(rows)  # (R, V)
        target = self.head.pick(logits, label)
        scale = self.d_losses[rows].unsqueeze(1)
        picked = [self.head.pick(logits, earlier.words)] if earlier else []
        losses, d_all, d_known = {}, None, [None, None]
        if self.alternatives:
            reading = (logits, label.squeeze(1), scale.squeeze(1))
            losses, (d_all,) = self.alternatives.of_logits(*reading)
        if reverse:
            subset = self.head.without(logits, excluded, label, target)
            self.of["reverse"][rows] = (self.head.softmax_(subset) - target).squeeze(1)
        mean = self.head.mean(logits) if smoothing else target
        total = self.head.softmax_(logits)
        if self.alternatives:
            known = [total.squeeze(1), target.squeeze(1), *picked]
            more, d_known = self.alternatives.of_likelihoods(known, earlier, scale.squeeze(1))
            losses.update(more)
        for name, values in losses.items():
            self.of[name][rows] = values
        if mle:
            smoothed = total - (1 - smoothing) * target - smoothing * mean
            self.of["mle"][rows] = smoothed.squeeze(1)
        for name in self.first_by_mle:
            values = self.of[name][rows]
            self.of[name][rows] = torch.where(is_first, total - target, values[:, None])[:, 0]
        if self.head.differentiate:
            # The gradient is each softmax times its weight, minus the target distribution.
            in_all = mle + firsts * is_first.to(self.head.wide)  # (R, 1)
            by_mle = is_first & ("reverse" in self.first_by_mle)
            in_subset = reverse * (~by_mle).to(self.head.wide)
            d_total, d_label, *d_earlier = (
                x if x is None else x.view(len(rows), -1) for x in d_known
            )
            share = in_all * scale
            d_logits = logits.mul_(share if d_total is None else share + d_total)
            if reverse:
                d_logits += subset.mul_(in_subset * scale)
            if smoothing:
                self.head.subtract_(d_logits, mle * smoothing / self.head.possible * scale)
            target_weight = in_all - mle * smoothing + in_subset
            self.head.add_(d_logits, label, -target_weight * scale)
            if d_label is not None:
                self.head.add_(d_logits, label, d_label)
            for d_words in d_earlier:
                if d_words is not None:
                    self.head.add_(d_logits, earlier.words, d_words)
            if d_all is not None:
                d_logits += d_all
            self.head.backward(rows, d_logits, slope)

    def add_smile(self, rows: Tensor, labels: Tensor) -> None:
        """Add SMILE's losses, without first tokens scored by MLE. rows, labels: (C, L)."""
        ignore, length = self.mixture.ignore_index, labels.size(1)
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
        if self.mixture.pad_token_id is not None:
            sampled = sampled.where(sampled != self.mixture.pad_token_id, label)
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
        weight, unscored = self.mixture.weights[name], len(self.d_losses)
        for chunk in slices(len(rows), self.head.elements // size):
            logits, slope = self.head.logits_of(rows[chunk], words[chunk])
            is_scored = scored[chunk]
            with recorded():
                losses = losses_of(logits.requires_grad_(self.head.differentiate), chunk)
            self.of[name][rows[chunk].where(is_scored, unscored)] = losses.detach()
            if self.head.differentiate:
                (d_logits,) = torch.autograd.grad(losses, logits, is_scored.to(losses.dtype))
                d_logits.mul_(weight * self.d_losses[rows[chunk]].unsqueeze(2))
                self.head.backward_of(rows[chunk], words[chunk], d_logits, slope)

    def _scored(self, name: str, labels: Tensor) -> Tensor:
        """bool (C, L): labelled positions without first tokens that the objective scores by MLE."""
        ignore = self.mixture.ignore_index
        first = first_labelled(labels, ignore) & (name in self.first_by_mle)
        return (labels != ignore) & ~first
