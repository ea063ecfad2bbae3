"""The fused linear loss: losses from hidden states and the head's weight, without all logits.

SMILE and random subsetting gather the head's rows of a caption's words. The other objectives need
the logits of all words, which exist for some positions at a time. The gradient of these positions
is added to those of the hidden states and the head before their logits are freed, as in the fused
cross-entropy of Liger-Kernel (arXiv 2410.10989).
"""

from collections.abc import Callable
from typing import NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from smile.loss import IGNORE, MAX_MASKED_LOGIT, first_labelled, subset_losses

# How many positions have their logits at a time (with fewer, reading and writing the weight's
# gradient would take longer than the matrix products), and how many elements of the head's rows are
# gathered, or converted to half precision, at a time.
CPU, GPU = (256, 2**20), (1024, 2**24)


class Term(NamedTuple):
    """An objective of a mixture.

    - share: its weight in the mixture.
    - losses: from logits (C, L, V) and labels (C, L) to losses (C, L); see smile/loss.py.
    - weigh: if the losses are MLE's, times a weight without gradient: from losses to weights.
    - label_smoothing: MLE's.
    - subset: if the losses are `subset_losses`: from labels (C, L) to the words of each caption
      (C, J) or position (C, L, J), and a mask that is false for repeated words.
    - first_token_mle: whether MLE's losses replace those of first labels.
    """

    share: float
    losses: Callable
    weigh: Optional[Callable] = None
    label_smoothing: float = 0.0
    subset: Optional[Callable] = None
    first_token_mle: bool = False


class Head:
    """Computes losses at some positions, and adds up gradients.

    - hidden: (M, D)
    - weight: (V, D)
    - bias: (V,) or None

    Logits are computed in `dtype`. Losses and `grads`, the gradients of hidden, weight and bias,
    are float32 or wider; a gradient is None where `needs_grad` is false. The factors of methods are
    the losses' gradients.
    """

    def __init__(self, hidden, weight, bias, dtype, needs_grad):
        self.hidden, self.weight, self.dtype = hidden.to(dtype), weight, dtype
        self.bias = None if bias is None else bias.to(dtype)
        self.wide = torch.promote_types(dtype, torch.float32)
        pairs = zip((hidden, weight, bias), needs_grad)
        self.grads = [torch.zeros_like(x, dtype=self.wide) if need else None for x, need in pairs]
        self.has_grads = any(needs_grad)
        self.positions, self.elements = CPU if hidden.is_cpu else GPU
        # Slices of the vocabulary keep what is converted to half precision in the cache.
        size = len(weight) if dtype == self.wide else max(self.elements // weight.size(1), 1)
        self.slices = [slice(i, i + size) for i in range(0, len(weight), size)]

    def logits(self, positions):
        """Return the logits (R, V) of positions (R,)."""
        hidden = self.hidden[positions]
        if len(self.slices) == 1:
            return F.linear(hidden, self.weight.to(self.dtype), self.bias).to(self.wide)
        logits = hidden.new_empty(len(positions), len(self.weight), dtype=self.wide)
        for words in self.slices:
            logits[:, words] = hidden @ self.weight[words].to(self.dtype).T
        return logits if self.bias is None else logits.add_(self.bias)

    def backward(self, positions, d_logits) -> None:
        """Add the gradients of `logits(positions)`, whose own gradient is (R, V)."""
        d_hidden, d_weight, d_bias = self.grads
        hidden = self.hidden[positions]
        if d_bias is not None:
            d_bias += d_logits.sum(0)
        for words in self.slices:
            d = d_logits[:, words].to(self.dtype)
            if d_hidden is not None:
                d_words = d @ self.weight[words].to(self.dtype)
                d_hidden.index_add_(0, positions, d_words.to(self.wide))
            if d_weight is not None and self.dtype == self.wide:
                d_weight[words].addmm_(d.T, hidden)
            elif d_weight is not None:
                d_weight[words] += d.T @ hidden

    def mle_losses(self, labels, terms: list[Term], factors) -> Tensor:
        """Return the losses (K, M) of K terms that are MLE's, where their factors (K, M) are not 0.

        labels: (M,).
        """
        losses, unmasked = torch.zeros_like(factors), None
        if any(term.label_smoothing for term in terms):
            unmasked = self.weight.new_ones(len(self.weight), dtype=self.wide)
            if self.bias is not None:  # which alone can mask words
                unmasked *= self.bias > MAX_MASKED_LOGIT
            unmasked /= unmasked.sum()
        for positions in factors.any(0).nonzero().squeeze(1).split(self.positions):
            logits, label = self.logits(positions), labels[positions, None]  # (R, V), (R, 1)
            label_logits = mean = logits.gather(1, label)
            if unmasked is not None:
                mean = (logits.clamp_(min=MAX_MASKED_LOGIT) @ unmasked).unsqueeze(1)
            largest = logits.amax(1, keepdim=True)
            p = torch.softmax(logits, 1, out=logits)
            total = largest - p.amax(1, keepdim=True).log()  # the logsumexp
            factor = smooth = torch.zeros_like(label_logits)
            for term, row, each in zip(terms, losses, factors[:, positions, None]):
                s = term.label_smoothing
                loss = total - (1 - s) * label_logits - s * mean
                weight = term.weigh(loss.clamp(min=0))
                row[positions] = (weight * loss).where(each != 0, 0).squeeze(1)
                factor, smooth = factor + weight * each, smooth + weight * each * s
            if self.has_grads:
                p.mul_(factor).scatter_add_(1, label, smooth - factor)  # now the logits' gradient
                if unmasked is not None:
                    p.addcmul_(smooth, unmasked, value=-1)
                self.backward(positions, p)
            del logits, p  # before the next are computed
        return losses

    def subset_losses(self, positions, words, is_new, factors) -> Tensor:
        """Return the losses of a softmax over some words, where factors are not 0.

        - positions, factors: (G, R)
        - words, is_new: (G, J)
        """
        d_hidden, d_weight, d_bias = self.grads
        losses, D = [], self.hidden.size(1)
        step = max(self.elements // (words.size(1) * max(words.size(1), D)), 1)
        inputs = (x.split(step) for x in (positions, words, is_new, factors))
        for block, ids, new, each in zip(*inputs):
            weight = self.weight[ids].to(self.dtype)  # (g, J, D)
            hidden = self.hidden[block]
            if self.bias is None:
                logits = hidden @ weight.mT  # (g, R, J)
            else:
                logits = torch.baddbmm(self.bias[ids].unsqueeze(1), hidden, weight.mT)
            logits = logits.to(self.wide)
            loss, d = self._with_gradient(lambda z, new=new: subset_losses(z, new), logits, each)
            losses.append(loss)
            if d_bias is not None:
                d_bias.index_add_(0, ids.flatten(), d.sum(1).flatten())
            d = d.to(self.dtype)
            if d_hidden is not None:
                d_hidden.index_add_(0, block.flatten(), (d @ weight).view(-1, D).to(self.wide))
            if d_weight is not None:
                d_weight.index_add_(0, ids.flatten(), (d.mT @ hidden).view(-1, D).to(self.wide))
        return torch.cat(losses)

    def other_losses(self, positions, labels, losses: Callable, factors) -> Tensor:
        """Return the losses (C, L) of a function of all logits, where factors are not 0.

        - positions, labels, factors: (C, L)
        - losses: see `Term`
        """
        results = []
        step = max(self.positions // labels.size(1), 1)
        for block, targets, each in zip(*(x.split(step) for x in (positions, labels, factors))):
            logits = self.logits(block.flatten()).view(*targets.shape, -1)
            logits.masked_fill_((each == 0).unsqueeze(2), 0)
            # Autograd needs several times the memory of what it gets.
            few = max(len(targets) // 4, 1)
            for z, *y in zip(*(x.split(few) for x in (logits, targets, each))):
                loss, d = self._with_gradient(lambda z, y=y: losses(z, y[0]), z, y[1])
                results.append(loss)
                z.detach().copy_(d)  # now the logits' gradient
            if self.has_grads:
                self.backward(block.flatten(), logits.detach().flatten(0, 1))
            del logits, z, d
        return torch.cat(results)

    def _with_gradient(self, losses: Callable, logits, factors) -> tuple[Tensor, Tensor]:
        """Return losses, and the gradient of the logits."""
        if not self.has_grads:
            return losses(logits), logits
        # The saved tensors are used at once. Hooks of activation checkpointing must not see them.
        identity = (lambda x: x, lambda x: x)
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(*identity):
            loss = losses(logits.requires_grad_())
            return loss.detach(), torch.autograd.grad(loss, logits, factors)[0]


def fused_losses(hidden, weight, bias, labels, terms: list[Term], blocks, factors, per_token):
    """Return the sum of K objectives times `factors`, and their losses (K, B, N).

    The losses have no gradient. The sum is a scalar, or (B, N) if it is `per_token`.

    - hidden: (B, N, D). weight, bias: the head's, (V, D) and (V,) or None.
    - labels: int64 (B, N). blocks: the captions, see `caption_blocks`.
    - factors: (B, N), the weight of each token, 0 where nothing is scored.
    """
    device = hidden.device.type
    autocast = torch.is_autocast_enabled(device) and hidden.dtype != torch.float64
    dtype = torch.get_autocast_dtype(device) if autocast else hidden.dtype
    # Words are sampled here, because the backward pass may compute the losses again.
    subsets = [[term.subset and term.subset(targets) for _, targets in blocks] for term in terms]

    def compute(hidden, weight, bias, factors, needs_grad):
        """Return losses (K, B, N) and gradients. factors: (B, N), the losses' gradients."""
        with torch.autocast(device, enabled=False):
            # Hidden states at padding may be nan, which a gradient of 0 would not remove.
            hidden = hidden.masked_fill((factors == 0).unsqueeze(2), 0).flatten(0, 1)
            head = Head(hidden, weight, bias, dtype, needs_grad)
            losses = _compute(head, labels.flatten(), terms, blocks, subsets, factors.flatten())
        return losses.view(len(terms), *factors.shape), head.grads

    # The gradient of a token's loss is not known yet. In float16 it needs the loss scale.
    later = per_token or dtype == torch.float16 or not torch.is_grad_enabled()
    shares = factors.new_tensor([term.share for term in terms]).view(-1, 1, 1)
    return _Sum.apply(hidden, weight, bias, compute, shares, factors, per_token, later)


class _Sum(torch.autograd.Function):
    """Computes the gradients with the losses, or in the backward pass if that must be `later`."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, compute, shares, factors, per_token, later):
        ctx.save_for_backward(hidden, weight, bias)
        ctx.compute, ctx.factors = compute, factors
        needs_grad = [need and not later for need in ctx.needs_input_grad[:3]]
        losses, grads = compute(hidden, weight, bias, factors, needs_grad)
        ctx.grads = None if later else grads
        ctx.mark_non_differentiable(losses)
        total = (shares * losses).sum(0) * factors
        return total if per_token else total.sum(), losses

    @staticmethod
    def backward(ctx, d_loss, _):
        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError("from_hidden has no second derivative; compute it from logits")
        saved, grads, ctx.grads = ctx.saved_tensors, ctx.grads, None
        if grads is None:
            factors = (ctx.factors * d_loss).masked_fill(ctx.factors == 0, 0)  # d_loss may be nan
            grads = ctx.compute(*saved, factors, ctx.needs_input_grad[:3])[1]
        else:
            grads = [grad if grad is None else grad.mul_(d_loss) for grad in grads]
        pairs = zip(grads, saved)
        cast = [grad if grad is None else grad.view(x.shape).to(x.dtype) for grad, x in pairs]
        return *cast, *[None] * 5


def _compute(head: Head, labels, terms, blocks, subsets, factors) -> Tensor:
    """Return the losses (K, M) of K terms, and add gradients to the head.

    labels, factors: (M,), and the losses' gradients. subsets: the words of each term's blocks.
    """
    losses, is_first = factors.new_zeros(len(terms), len(factors)), torch.zeros_like(factors)
    for positions, targets in blocks:
        is_first[positions[first_labelled(targets)]] = 1
    mle = []  # (row, term, factors) of terms that are MLE's, or whose first tokens are
    for row, term, subset in zip(losses, terms, subsets):
        each = term.share * factors
        if term.weigh is not None:
            mle.append((row, term, each))
            continue
        if term.first_token_mle:
            mle.append((row, term._replace(weigh=torch.ones_like), each * is_first))
            each = each * (1 - is_first)
        for (positions, targets), words in zip(blocks, subset):
            d_losses = each[positions].masked_fill(targets == IGNORE, 0)
            if words is None:
                block_losses = head.other_losses(positions, targets, term.losses, d_losses)
            else:
                words, is_new = words
                if words.dim() == 3:  # words of each position
                    scored = d_losses != 0
                    positions = positions[scored].unsqueeze(1)
                    d_losses = d_losses[scored].unsqueeze(1)
                    words, is_new = words[scored], is_new[scored]
                block_losses = head.subset_losses(positions, words, is_new, d_losses)
            row[positions[d_losses != 0]] = block_losses[d_losses != 0]
    if mle:
        rows, mle_terms, each = zip(*mle)
        for row, term_losses in zip(rows, head.mle_losses(labels, mle_terms, torch.stack(each))):
            row += term_losses
    return losses
