"""A mixture of objectives from hidden states, without the logits that it does not need.

The losses are those of `smile_loss`, `random_subset_loss`, `reverse_subset_loss` and `mle_loss`,
which define them. What is new is where logits come from. SMILE and random subsetting ask for a few
words a position, whose rows of the head are gathered; their losses are then the definitions' own,
in a vocabulary of those words. MLE, reverse subsetting and first tokens need the whole vocabulary,
a piece of the positions at a time. Each piece leaves its gradient and is forgotten, as in
Liger-Kernel's fused cross-entropy (arXiv 2410.10989), so that nothing is computed twice.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from smile.head import POSITIONS, Head, computed_in, slices
from smile.labels import caption_types, first_labelled
from smile.smile import smile_loss
from smile.subsetting import random_subset_loss, reverse_subset_excludes

HERE = -100  # the ignore_index of labels that count a caption's own words


@torch.compiler.disable
def mixture_from_hidden(hidden, weight, bias, labels, words, mixture):
    """The loss and its parts, detached, in the order of the weights; see `Objective.from_hidden`.

    words: int64 (B, N, R), drawn for random subsetting, or None. mixture: that `Objective`.
    Compiled code calls it as it is.
    """
    inputs = [x for x in (hidden, weight, bias) if x is not None]
    differentiate = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    return _MixtureFromHidden.apply(hidden, weight, bias, labels, words, mixture, differentiate)


class _MixtureFromHidden(torch.autograd.Function):
    """(hidden (B, N, D), weight, bias, labels (B, N), words (B, N, R) or None, mixture, whether
    gradients will be asked for) -> the loss, and the parts (len(weights),), which have none."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, labels, words, mixture, differentiate):
        ctx.save_for_backward(hidden, weight, bias, labels, words)
        device = hidden.device.type
        dtype, enabled = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
        ctx.mixture, ctx.autocast = mixture, {"dtype": dtype, "enabled": enabled}
        # The range of float16 needs the scale of the loss, which backward alone knows.
        at_once = differentiate and computed_in(hidden) != torch.float16
        parts, ctx.gradients = _compute(hidden, weight, bias, labels, words, mixture, at_once)
        weights = parts.new_tensor(list(mixture.weights.values()))
        ctx.mark_non_differentiable(parts)
        return (weights * parts).sum(), parts

    @staticmethod
    def backward(ctx, d_loss, _):
        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError(
                "the objective from hidden states has no second derivative; give it logits instead"
            )
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:  # float16, or a second backward
            with torch.autocast(d_loss.device.type, **ctx.autocast):
                _, gradients = _compute(*ctx.saved_tensors, ctx.mixture, True, d_loss)
        else:
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(d_loss)
        inputs = ctx.saved_tensors[:3]
        typed = (None if g is None else g.to(x.dtype) for x, g in zip(inputs, gradients))
        return (*typed, None, None, None, None)


def _compute(hidden, weight, bias, labels, words, mixture, differentiate, scale=1.0):
    """The parts, and, if asked for, `scale` times the gradients of hidden, weight and bias."""
    head = Head(hidden.flatten(0, 1), weight, bias, differentiate)
    with torch.autocast(hidden.device.type, enabled=False):
        tokens = (labels != mixture.ignore_index).sum().clamp(min=1)
        scale = torch.as_tensor(scale, dtype=head.wide, device=labels.device) / tokens
        sums = _whole_vocabulary(head, labels, mixture, scale)
        if "smile" in mixture.weights:
            sums["smile"] = sums["first"] + _smile(head, labels, mixture, scale)
        if "random" in mixture.weights:
            sums["random"] = sums["first"] + _random(head, labels, words, mixture, scale)
        parts = torch.stack([sums[name] for name in mixture.weights]) / tokens
    if not differentiate:
        return parts, None
    return parts, (head.d_hidden.view_as(hidden), head.d_weight, head.d_bias)


def _whole_vocabulary(head: Head, labels: Tensor, mixture: nn.Module, scale: Tensor) -> dict:
    """Sums over tokens of what needs all logits: `mle`, `reverse`, and `first`, the MLE of the
    first tokens, which is part of the other objectives with first-token MLE."""
    labelled = labels != mixture.ignore_index
    first = first_labelled(labels, mixture.ignore_index) & mixture.first_token_mle
    everywhere = "mle" in mixture.weights or "reverse" in mixture.weights
    rows = (labelled if everywhere else first).flatten().nonzero().squeeze(1)  # (M,)
    label, is_first = (x.flatten()[rows].unsqueeze(1) for x in (labels, first))  # (M, 1) each
    excluded = reverse_subset_excludes(labels, mixture.ignore_index, mixture.pad_token_id)
    sums = scale.new_zeros(3)
    for piece in slices(len(rows), POSITIONS["cpu" if labels.is_cpu else "cuda"]):
        columns = excluded[rows[piece] // labels.size(1)]
        sums += _piece(head, rows[piece], label[piece], is_first[piece], columns, mixture, scale)
    mle, first_sum, reverse = sums
    return {"mle": mle, "first": first_sum, "reverse": reverse + first_sum}


def _piece(head, rows, label, is_first, excluded, mixture, scale):
    """The sums (3,) over `rows` (R,) of MLE, of first tokens' MLE and of other tokens' reverse
    subsetting, whose subset is without `excluded` (R, .). label, is_first: (R, 1)."""
    mle, reverse = (mixture.weights.get(name, 0.0) for name in ("mle", "reverse"))
    others = sum(mixture.weights.values()) - mle
    smoothing = mixture.label_smoothing if mle else 0.0
    logits = head.logits(rows)  # (R, V)
    target = logits.gather(1, label)
    sums = logits.new_zeros(3)
    if reverse:
        subset = logits.scatter(1, excluded, float("-inf")).scatter_(1, label, target)
        sums[2] = (softmax_(subset) - target)[~is_first].sum()
    mean = logits.mean(1, keepdim=True) if smoothing else target
    total = softmax_(logits)
    sums[0] = (total - (1 - smoothing) * target - smoothing * mean).sum()
    sums[1] = (total - target)[is_first].sum()
    if head.differentiate:
        # Each softmax times its weight, less what the labels and smoothing ask for.
        in_all = mle + others * is_first.to(head.wide)  # (R, 1)
        in_subset = reverse * (~is_first).to(head.wide)
        d_logits = logits.mul_(in_all * scale)
        if reverse:
            d_logits += subset.mul_(in_subset * scale)
        if smoothing:
            d_logits -= mle * smoothing / logits.size(1) * scale
        asked = in_all - mle * smoothing + in_subset
        head.backward(rows, d_logits.scatter_add_(1, label, -asked * scale))
    return sums


def softmax_(logits: Tensor) -> Tensor:
    """Turn logits (R, V) into probabilities in their place; the logsumexp (R, 1) of each row."""
    largest, where = logits.max(1, keepdim=True)
    torch.softmax(logits, 1, out=logits)
    return largest - logits.gather(1, where).log()


def _smile(head: Head, labels: Tensor, mixture: nn.Module, scale: Tensor) -> Tensor:
    """The sum of SMILE's losses but those of first tokens that are scored by MLE."""
    captions, length = labels.shape
    types, _ = caption_types(labels, mixture.ignore_index)  # (B, N)
    counted = _counted(labels, mixture)
    own = (types.unsqueeze(2) == types.unsqueeze(1)).int().argmax(2)  # where its type first stands
    own = own.masked_fill(labels == mixture.ignore_index, HERE)
    rows = torch.arange(captions * length, device=labels.device).view(captions, length)
    each = 2 * length * max(length, head.hidden.size(1))  # the words' rows and their gradient

    def loss_of(logits, piece):  # (b, N, N)
        return (smile_loss(logits, own[piece], HERE, reduction="none") * counted[piece]).sum()

    return _gathered(head, rows, types, each, loss_of, mixture.weights["smile"] * scale)


def _random(head: Head, labels: Tensor, words: Tensor, mixture: nn.Module, scale: Tensor) -> Tensor:
    """The sum of random subsetting's losses but those of first tokens that are scored by MLE."""
    rows = _counted(labels, mixture).flatten().nonzero()  # (M, 1)
    label = labels.flatten()[rows]  # (M, 1)
    drawn = words.flatten(0, 1)[rows.squeeze(1)]  # (M, R)
    if mixture.pad_token_id is not None:
        drawn = drawn.where(drawn != mixture.pad_token_id, label)
    columns = torch.cat([label, drawn], dim=1)  # (M, 1 + R)
    same = (columns.unsqueeze(2) == columns.unsqueeze(1)).int().argmax(2)
    each = 2 * columns.size(1) * head.hidden.size(1)

    def loss_of(logits, piece):  # (m, 1, 1 + R)
        # Words are numbered by their column, where they first stand; the label's is 0.
        numbered = same[piece].unsqueeze(1)
        label, drawn = numbered[..., 0], numbered[..., 1:]
        return random_subset_loss(logits, label, drawn, HERE, reduction="sum")

    return _gathered(head, rows, columns, each, loss_of, mixture.weights["random"] * scale)


def _gathered(
    head: Head, rows: Tensor, words: Tensor, each: int, loss_of: Callable, weight: Tensor
) -> Tensor:
    """The loss on the logits of `rows` (G, R) for `words` (G, J), its gradient times `weight`
    collected by the head.

    loss_of: logits (g, R, J) and the slice of those groups to a scalar. each: the elements that a
    group takes, of which only so many are there at a time.
    """
    total = weight.new_zeros(())
    for piece in slices(len(rows), head.elements // each):
        logits = head.logits_of(rows[piece], words[piece])
        with torch.enable_grad():
            loss = loss_of(logits.requires_grad_(head.differentiate), piece)
        if head.differentiate:
            (d_logits,) = torch.autograd.grad(loss, logits)
            head.backward_of(rows[piece], words[piece], d_logits.mul_(weight))
        total = total + loss.detach()
    return total


def _counted(labels: Tensor, mixture: nn.Module) -> Tensor:
    """bool (B, N): labelled, and not a first token that is scored by MLE."""
    first = first_labelled(labels, mixture.ignore_index) & mixture.first_token_mle
    return (labels != mixture.ignore_index) & ~first
