"""The fused linear loss: a mixture of objectives without a tensor of all logits.

`smile_loss`, `random_subset_loss`, `reverse_subset_loss` and `mle_loss` define the losses. SMILE
and random subsetting need the logits of a few tokens a position, whose rows of the head's weight
are gathered; the definitions then compute the losses in a vocabulary of those tokens. MLE, reverse
subsetting and first tokens need the whole vocabulary. They are computed for a chunk of the
positions at a time, whose gradient is accumulated before its logits are freed, as in Liger-Kernel's
fused cross-entropy (arXiv 2410.10989).
"""

from collections.abc import Callable
from typing import Optional

import torch
from torch import Tensor

from smile.captions import blocks
from smile.head import POSITIONS, Head, recorded, slices
from smile.labels import caption_types, count, first_labelled, reduce
from smile.loading import load
from smile.mixture import LossInputs, Mixture
from smile.smile import smile_loss
from smile.subsetting import random_subset_loss, reverse_subset_excludes

HERE = -100  # the ignore_index of labels that number a caption's tokens


def loss_and_parts(hidden: Tensor, weight: Tensor, bias: Optional[Tensor], inputs: LossInputs):
    """The loss, a scalar or (B, N), the parts (len(weights), ...), and the gradients of hidden,
    weight and bias for a d_loss of 1, each None where it is not wanted or deferred."""
    d_loss = 1.0 if any(inputs.wanted) and not inputs.defer_grad else None
    losses, gradients = losses_and_gradients(hidden, weight, bias, inputs, d_loss)
    how = (inputs.labels, inputs.mixture.ignore_index, inputs.reduction, inputs.weights)
    parts = torch.stack([reduce(each, *how) for each in losses])
    weights = inputs.mixture.weights.values()
    return sum(each * part for each, part in zip(weights, parts)), parts, gradients


def losses_and_gradients(hidden, weight, bias, inputs, d_loss):
    """Each objective's losses (B, N), and gradients of hidden, weight and bias.

    d_loss: the gradient of the reduced loss, a scalar or (B, N); None for no gradients.
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
        # Reverse subsetting reads the end of a row.
        reverse = "reverse" in settings.weights
        for rows, own in blocks(labels, inputs.segments, settings.ignore_index, reverse):
            padding = settings.pad_token_id if inputs.segments is None else None
            losses.add_whole_vocabulary(rows, own, padding)
            if "smile" in settings.weights:
                losses.add_smile(rows, own)
            if "random" in settings.weights:
                losses.add_random(rows, own, words)
    found = [losses.of[name][:-1].view_as(labels) for name in settings.weights]
    d_hidden, d_weight, d_bias = head.gradients()
    return found, (None if d_hidden is None else d_hidden.view(hidden.shape), d_weight, d_bias)


class _Losses:
    """Losses of tokens by objective, `of[name]` (B * N + 1,), computed for some captions at a time,
    and their gradients, which the head accumulates.

    d_losses: (B, N), the gradient of each token's weighted sum.
    """

    def __init__(self, head: Head, labels: Tensor, mixture: Mixture, d_losses: Tensor):
        self.head, self.mixture, self.first_by_mle = head, mixture, mixture.first_by_mle()
        self.alternatives = None
        if mixture.alternatives():
            in_pieces = load("smile.alternatives.in_pieces:Alternatives")
            self.alternatives = in_pieces(mixture, head.differentiate)
        self.d_losses = d_losses.flatten()
        # The last element takes the losses of positions that are not scored.
        self.of = {name: d_losses.new_zeros(labels.numel() + 1) for name in mixture.weights}

    def add_whole_vocabulary(self, rows: Tensor, labels: Tensor, padding: Optional[int]) -> None:
        """Losses that need all logits: MLE, reverse subsetting, alternatives, and first tokens,
        whose MLE is part of the objectives with first-token MLE. rows, labels: (C, L), a caption in
        a row."""
        mixture = self.mixture
        labelled = labels != mixture.ignore_index
        first = first_labelled(labels, mixture.ignore_index) & bool(self.first_by_mle)
        everywhere = not {"smile", "random"}.issuperset(mixture.weights)
        chosen = (labelled if everywhere else first).flatten().nonzero().squeeze(1)  # (M,)
        excluded = reverse_subset_excludes(labels, mixture.ignore_index, padding)
        label, is_first = (x.flatten()[chosen].unsqueeze(1) for x in (labels, first))  # (M, 1) each
        earlier = self.alternatives and self.alternatives.earlier(labels, chosen)
        of_caption = chosen.div(labels.size(1), rounding_mode="floor")
        chosen = rows.flatten()[chosen]
        for piece in slices(len(chosen), POSITIONS["cpu" if labels.is_cpu else "cuda"]):
            columns = excluded[of_caption[piece]]
            before = earlier and earlier._make(x[piece] for x in earlier)
            self._add_piece(chosen[piece], label[piece], is_first[piece], columns, before)

    def _add_piece(self, rows, label, is_first, excluded, earlier):
        """Of `rows` (R,). label, is_first: (R, 1). excluded: (R, .), the tokens that the subset of
        reverse subsetting lacks. earlier: the earlier tokens that some alternatives read."""
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
        for name, found in losses.items():
            self.of[name][rows] = found
        if mle:
            smoothed = total - (1 - smoothing) * target - smoothing * mean
            self.of["mle"][rows] = smoothed.squeeze(1)
        for name in self.first_by_mle:
            found = self.of[name][rows]
            self.of[name][rows] = torch.where(is_first, total - target, found[:, None])[:, 0]
        if self.head.differentiate:
            # Each softmax times its weight, minus the target distribution.
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
            of_label = in_all - mle * smoothing + in_subset
            self.head.add_(d_logits, label, -of_label * scale)
            if d_label is not None:
                self.head.add_(d_logits, label, d_label)
            for d_words in d_earlier:
                if d_words is not None:
                    self.head.add_(d_logits, earlier.words, d_words)
            if d_all is not None:
                d_logits += d_all
            self.head.backward(rows, d_logits, slope)

    def add_smile(self, rows: Tensor, labels: Tensor) -> None:
        """SMILE's losses, except of first tokens scored by MLE. rows, labels: (C, L)."""
        ignore, length = self.mixture.ignore_index, labels.size(1)
        types, _ = caption_types(labels, ignore)  # (C, L)
        own = (types.unsqueeze(2) == types.unsqueeze(1)).int().argmax(2)  # the column of its type
        own = own.masked_fill(labels == ignore, HERE)
        each = 2 * length * max(length, self.head.hidden.size(1))  # weight rows and gradient

        def losses_of(logits, piece):  # (c, L, L)
            return smile_loss(logits, own[piece], HERE, reduction="none")

        counted = self._counted("smile", labels)
        self._add_gathered("smile", rows, types, counted, each, losses_of)

    def add_random(self, rows: Tensor, labels: Tensor, words: Tensor) -> None:
        """Random subsetting's losses, except of first tokens scored by MLE."""
        chosen = self._counted("random", labels)  # (C, L)
        rows, label = rows[chosen].unsqueeze(1), labels[chosen].unsqueeze(1)  # (M, 1) each
        sampled = words.flatten(0, 1)[rows.squeeze(1)]  # (M, R)
        if self.mixture.pad_token_id is not None:
            sampled = sampled.where(sampled != self.mixture.pad_token_id, label)
        columns = torch.cat([label, sampled], dim=1)  # (M, 1 + R)
        same = (columns.unsqueeze(2) == columns.unsqueeze(1)).int().argmax(2)
        each = 2 * columns.size(1) * self.head.hidden.size(1)

        def losses_of(logits, piece):  # (m, 1, 1 + R)
            # Tokens are numbered by the column where they first occur; the label's is 0.
            numbered = same[piece].unsqueeze(1)
            label, sampled = numbered[..., 0], numbered[..., 1:]
            return random_subset_loss(logits, label, sampled, HERE, reduction="none")

        all_of_them = torch.ones_like(rows, dtype=torch.bool)
        self._add_gathered("random", rows, columns, all_of_them, each, losses_of)

    def _add_gathered(
        self,
        name: str,
        rows: Tensor,
        words: Tensor,
        counted: Tensor,
        each: int,
        losses_of: Callable,
    ) -> None:
        """Losses of `rows` (G, R) where `counted`, from their logits for `words` (G, J) alone.

        losses_of: logits (g, R, J) and the slice of those groups to losses (g, R). each: the number
        of elements that a group takes, which limits the groups in a chunk.
        """
        weight, nowhere = self.mixture.weights[name], len(self.d_losses)
        for piece in slices(len(rows), self.head.elements // each):
            logits, slope = self.head.logits_of(rows[piece], words[piece])
            here = counted[piece]
            with recorded():
                losses = losses_of(logits.requires_grad_(self.head.differentiate), piece)
            self.of[name][rows[piece].where(here, nowhere)] = losses.detach()
            if self.head.differentiate:
                (d_logits,) = torch.autograd.grad(losses, logits, here.to(losses.dtype))
                d_logits.mul_(weight * self.d_losses[rows[piece]].unsqueeze(2))
                self.head.backward_of(rows[piece], words[piece], d_logits, slope)

    def _counted(self, name: str, labels: Tensor) -> Tensor:
        """bool (C, L): labelled, and not a first token that the objective scores by MLE."""
        ignore = self.mixture.ignore_index
        first = first_labelled(labels, ignore) & (name in self.first_by_mle)
        return (labels != ignore) & ~first
