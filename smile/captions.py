"""Finds the captions in a batch whose rows may contain several captions (packed rows).

`segments` are integers (B, N), aligned with the labels. Positions of a row with the same number
belong to the same caption. This module also converts other descriptions of packed rows, such as
position ids, to segments.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Optional

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from smile.labels import (
    at_least_float32,
    check_labels,
    first_labelled,
    prepare_weights,
    reduce_losses,
)

# Rows of this many tokens or more are reduced to their labelled positions if fewer than half of the
# tokens are labelled, because SMILE's cost grows with the square of the length.
LONG_ROW = 128


def segments_from_position_ids(position_ids: Tensor) -> Tensor:
    """Return segments, int64 (B, N). A new segment begins wherever positions restart.

    position_ids: (B, N) or (N,); or (3, B, N), positions in time, height and width, where all
    tokens of an image have the same time; or (4, B, N), text positions followed by time, height and
    width. Raises ValueError for another shape.
    """
    check_integers(position_ids, "position_ids")
    is_grid = position_ids.dim() == 3 and len(position_ids) != 4
    positions = position_ids[0] if position_ids.dim() == 3 else position_ids
    if positions.dim() == 1:
        positions = positions.unsqueeze(0)
    if positions.dim() != 2 or (is_grid and len(position_ids) != 3):
        raise ValueError(f"position_ids is {tuple(position_ids.shape)}; give (batch, tokens)")
    step = positions.diff(dim=1)
    restarts = step < 0 if is_grid else step <= 0
    return torch.nn.functional.pad(restarts, (1, 0)).cumsum(1)


def segments_from_cu_seq_lens(cu_seq_lens: Tensor, length: int) -> Tensor:
    """Return segments, int64 (1, length), of a batch whose S texts are joined into one row.

    cu_seq_lens: (S + 1,), the boundaries of the texts from 0 to `length`, as in FlashAttention.
    Raises ValueError for other boundaries. The values of boundaries are checked only on a CPU.
    """
    check_integers(cu_seq_lens, "cu_seq_lens")
    if cu_seq_lens.dim() != 1 or len(cu_seq_lens) < 2:
        raise ValueError(f"cu_seq_lens is {tuple(cu_seq_lens.shape)}; give boundaries (S + 1,)")
    if cu_seq_lens.is_cpu and not torch.compiler.is_compiling():
        first = cu_seq_lens[0].item()
        last = cu_seq_lens[-1].item()
        if first != 0 or last != length or (cu_seq_lens.diff() < 0).any():
            raise ValueError(
                f"cu_seq_lens goes from {first} to {last}; it must go from 0 to {length} and must "
                "not decrease"
            )
    positions = torch.arange(length, device=cu_seq_lens.device)
    return torch.bucketize(positions, cu_seq_lens[1:-1].long(), right=True).unsqueeze(0)


def captions_of_turns(
    labels: Tensor, segments: Optional[Tensor] = None, ignore_index: int = -100
) -> Tensor:
    """Return segments, int64 (B, N), in which each contiguous run of labels is a caption.

    Such a run may be an assistant's turn in a chat. labels: (B, N). segments: (B, N) or None; a
    run also ends where the segment changes.
    """
    is_labelled = labels != ignore_index
    is_start = is_labelled.clone()
    is_start[:, 1:] &= ~is_labelled[:, :-1]
    if segments is not None:
        check_segments(segments, labels)
        is_start[:, 1:] |= segments[:, 1:] != segments[:, :-1]
    return is_start.cumsum(1)


def check_segments(segments: Tensor, labels: Tensor) -> None:
    """Raise ValueError unless segments are integers of the labels' shape."""
    check_integers(segments, "segments")
    if segments.shape != labels.shape:
        raise ValueError(
            f"segments is {tuple(segments.shape)}, but labels is {tuple(labels.shape)}; "
            "give one number for each label"
        )


def check_integers(numbers: Tensor, name: str) -> None:
    """Raise ValueError unless `numbers` is a tensor of integers."""
    if not isinstance(numbers, Tensor):
        raise ValueError(f"{name} is a {type(numbers).__name__}; give a tensor of whole numbers")
    if numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool:
        raise ValueError(f"{name} is {numbers.dtype}; give whole numbers")


def caption_blocks(
    labels: Tensor, segments: Optional[Tensor], ignore_index: int, whole_rows: bool = False
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield blocks of captions of similar length, one caption per row.

    labels, segments: (B, N). A block is a pair: `positions`, int64 (C, L), positions in
    `labels.flatten()`, and the labels at these positions, (C, L), padded with `ignore_index`.
    Without segments, all rows are one block. If rows are long and few of their tokens are labelled,
    as in an answer after an image, the block has only labelled positions, unless `whole_rows`. With
    segments, blocks have only labelled positions, and the longest caption of a block has less than
    twice the length of the shortest.
    """
    if labels.numel() == 0:
        return
    if segments is None:
        positions = torch.arange(labels.numel(), device=labels.device).view_as(labels)
        if labels.size(1) >= LONG_ROW and not whole_rows:  # needs a synchronisation on a GPU
            is_labelled = labels != ignore_index
            max_labels = int(is_labelled.sum(1).max())
            if 2 * max_labels < labels.size(1):
                labelled_first = is_labelled.int().sort(dim=1, descending=True, stable=True).indices
                columns = labelled_first[:, : max(max_labels, 1)]
                positions = positions.gather(1, columns)
                labels = labels.gather(1, columns)
        yield positions, labels
        return
    labelled = (labels != ignore_index).flatten().nonzero().squeeze(1)  # (M,)
    if len(labelled) == 0:
        return
    segment_ids = _segment_ids(labels, segments).flatten()[labelled]
    _, caption, lengths = segment_ids.unique(return_inverse=True, return_counts=True)
    captions = labelled[caption.argsort(stable=True)].split(lengths.tolist())
    # Captions are grouped by their length, rounded up to a power of 2. The key is the exponent.
    blocks_by_exponent: dict[int, list[Tensor]] = {}
    for positions in captions:
        blocks_by_exponent.setdefault((len(positions) - 1).bit_length(), []).append(positions)
    for _, block in sorted(blocks_by_exponent.items()):
        positions = pad_sequence(block, batch_first=True, padding_value=-1)
        block_labels = labels.flatten()[positions].masked_fill(positions < 0, ignore_index)
        yield positions.clamp(min=0), block_labels


def number_captions(labels: Tensor, segments: Optional[Tensor]) -> tuple[Tensor, int]:
    """Return (the number of each position's caption, int64 (B, N); how many captions there are)."""
    if segments is None or labels.numel() == 0:
        rows = torch.arange(len(labels), device=labels.device).unsqueeze(1)
        return rows.expand_as(labels), len(labels)
    captions, numbers = _segment_ids(labels, segments).unique(return_inverse=True)
    return numbers, len(captions)


def _segment_ids(labels: Tensor, segments: Tensor) -> Tensor:
    """Return int64 (B, N), a different id for each segment of each row."""
    segments = segments.to(labels.device, torch.int64)
    minimum = segments.min()
    spread = segments.max() - minimum + 1
    offset = torch.arange(len(labels), device=labels.device).unsqueeze(1) * spread
    return offset + segments - minimum


def reduce_by_caption(
    loss_fn: Callable,
    inputs: Sequence[Tensor],
    labels: Tensor,
    ignore_index: int,
    reduction: str,
    segments: Optional[Tensor],
    weights: Optional[Tensor],
    first_token_mle: bool = False,
) -> Tensor:
    """Return the reduced losses of `loss_fn`, which gets one caption per row, packed or not.

    inputs: (B, N, ...) each; the first is logits. loss_fn: maps inputs (C, L, ...) and labels
    (C, L), one caption per row, to losses (C, L). Unlabelled positions may get arbitrary losses.
    Other arguments are as in `smile_loss`.
    """
    logits = inputs[0]
    if logits.dim() != 3 or logits.shape[:2] != labels.shape:
        raise ValueError(
            f"logits are {tuple(logits.shape)} and labels {tuple(labels.shape)}; they must be "
            "(B, N, V) and (B, N)"
        )
    labels, weights = prepare_weights(labels, weights, ignore_index)
    check_labels(labels, logits.size(2), ignore_index)

    def caption_losses(inputs, labels):
        losses = loss_fn(*inputs, labels)
        if first_token_mle:
            losses = with_first_token_mle(losses, inputs[0], labels, ignore_index)
        return losses

    if segments is None:
        losses = caption_losses(inputs, labels)
    else:
        check_segments(segments, labels)
        # This 0 depends on the logits, so that the loss of a batch without labels has a gradient.
        zero = at_least_float32(logits.flatten()[:0].sum())
        losses = zero.expand(labels.numel())
        for positions, block_labels in caption_blocks(labels, segments, ignore_index):
            block_inputs = [x.flatten(0, 1)[positions] for x in inputs]
            block_losses = caption_losses(block_inputs, block_labels)
            is_labelled = block_labels != ignore_index
            losses = losses.index_put((positions[is_labelled],), block_losses[is_labelled])
        losses = losses.view_as(labels)
    return reduce_losses(losses, labels, ignore_index, reduction, weights)


def with_first_token_mle(
    losses: Tensor, logits: Tensor, labels: Tensor, ignore_index: int
) -> Tensor:
    """Replace the loss of each caption's first label by cross-entropy over the whole vocabulary.

    losses, labels: (B, N), one caption per row. logits: (B, N, V).
    """
    if labels.size(1) == 0:
        return losses
    is_first = first_labelled(labels, ignore_index)
    position = is_first.int().argmax(1)  # (B,)
    rows = torch.arange(len(labels), device=labels.device)
    first_logits = at_least_float32(logits[rows, position])  # (B, V)
    label = labels[rows, position].masked_fill(~is_first.any(1), 0)
    mle = first_logits.logsumexp(1) - first_logits.gather(1, label.unsqueeze(1)).squeeze(1)
    return torch.where(is_first, mle.unsqueeze(1), losses)
