"""The captions of a batch, of which a row can hold several.

`segments` are integers (B, N), aligned with the labels: positions of a row that have the same
number are one caption. Other forms that packed rows have are converted here.
"""

from collections.abc import Callable, Iterator
from typing import Optional

import torch
from torch import Tensor

from smile.labels import check_labels, check_shapes, reduce, weigh

LONG = 128  # tokens of a row from which unlabelled ones are left out: SMILE takes their square


def segments_from_position_ids(position_ids: Tensor) -> Tensor:
    """int64 (B, N): a new number wherever positions start again.

    position_ids: (B, N) or (N,), or (3, B, N) and (4, B, N) of models whose positions have time,
    height and width, of which an image's tokens share the first; with four the first is the text's.
    """
    whole_numbers(position_ids, "position_ids")
    grid = position_ids.dim() == 3 and len(position_ids) != 4
    positions = position_ids[0] if position_ids.dim() == 3 else position_ids
    if positions.dim() == 1:
        positions = positions.unsqueeze(0)
    if positions.dim() != 2 or (grid and len(position_ids) != 3):
        raise ValueError(f"position_ids is {tuple(position_ids.shape)}; give (batch, tokens)")
    step = positions.diff(dim=1)
    again = step < 0 if grid else step <= 0
    return torch.nn.functional.pad(again, (1, 0)).cumsum(1)


def segments_from_cu_seq_lens(cu_seq_lens: Tensor, length: int) -> Tensor:
    """int64 (1, length): the number of the piece that each token of a flattened batch is in.

    cu_seq_lens: (S + 1,) boundaries from 0 to `length`, as attention of packed rows takes them.
    Raises ValueError for other boundaries; their values are read on a CPU alone.
    """
    whole_numbers(cu_seq_lens, "cu_seq_lens")
    if cu_seq_lens.dim() != 1 or len(cu_seq_lens) < 2:
        raise ValueError(f"cu_seq_lens is {tuple(cu_seq_lens.shape)}; give boundaries (S + 1,)")
    if cu_seq_lens.device.type == "cpu" and not torch.compiler.is_compiling():
        first, last = cu_seq_lens[0].item(), cu_seq_lens[-1].item()
        if first != 0 or last != length or (cu_seq_lens.diff() < 0).any():
            raise ValueError(
                f"cu_seq_lens goes from {first} to {last}; it must not fall, and the row goes from "
                f"0 to {length}"
            )
    places = torch.arange(length, device=cu_seq_lens.device)
    return torch.bucketize(places, cu_seq_lens[1:-1].long(), right=True).unsqueeze(0)


def captions_of_turns(
    labels: Tensor, segments: Optional[Tensor] = None, ignore_index: int = -100
) -> Tensor:
    """int64 (B, N) in which each unbroken run of labels has another number.

    labels: (B, N). A run is a turn of an assistant, say; it also ends where `segments` change.
    """
    labelled = labels != ignore_index
    begins = labelled.clone()
    begins[:, 1:] &= ~labelled[:, :-1]
    if segments is not None:
        check_segments(segments, labels)
        begins[:, 1:] |= segments[:, 1:] != segments[:, :-1]
    return begins.cumsum(1)


def check_segments(segments: Tensor, labels: Tensor) -> None:
    """Raise ValueError unless segments are whole numbers, one for each label."""
    whole_numbers(segments, "segments")
    if segments.shape != labels.shape:
        raise ValueError(
            f"segments is {tuple(segments.shape)}, but labels is {tuple(labels.shape)}; "
            "give one number for each label"
        )


def whole_numbers(numbers: Tensor, name: str) -> None:
    """Raise ValueError unless `numbers` is a tensor of integers."""
    if not isinstance(numbers, Tensor):
        raise ValueError(f"{name} is a {type(numbers).__name__}; give a tensor of whole numbers")
    if numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool:
        raise ValueError(f"{name} is {numbers.dtype}; give whole numbers, a token is not divided")


def blocks(
    labels: Tensor, segments: Optional[Tensor], ignore_index: int, whole_rows: bool = False
) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks of captions of similar length: the positions of their labels, and the labels.

    labels, segments: (B, N). Each block is `rows`, int64 (C, L), positions in `labels.flatten()`,
    and the labels there, (C, L), padded with `ignore_index`. Without segments all rows are one
    block; unless `whole_rows`, long rows with few labels, such as an answer after an image, keep
    these alone. With segments a block's longest caption is at most twice its shortest.
    """
    if labels.numel() == 0:
        return
    if segments is None:
        rows = torch.arange(labels.numel(), device=labels.device).view_as(labels)
        if labels.size(1) >= LONG and not whole_rows:  # waits for a GPU
            there = labels != ignore_index
            most = int(there.sum(1).max())
            if 2 * most < labels.size(1):
                labelled_first = there.int().sort(dim=1, descending=True, stable=True).indices
                places = labelled_first[:, : max(most, 1)]
                rows, labels = rows.gather(1, places), labels.gather(1, places)
        yield rows, labels
        return
    labelled = (labels != ignore_index).flatten().nonzero().squeeze(1)  # (M,)
    if len(labelled) == 0:
        return
    key = _keys(labels, segments).flatten()[labelled]
    _, caption, lengths = key.unique(return_inverse=True, return_counts=True)
    order = caption.argsort(stable=True)
    start = lengths.cumsum(0) - lengths
    place = torch.arange(len(order), device=order.device) - start[caption[order]]
    # The exponent of the next power of 2, in whole numbers: MPS has no float64.
    size = torch.bucketize(lengths, 1 << torch.arange(63, device=lengths.device))
    for of_this_size in (size == each for each in size.unique()):
        longest = lengths[of_this_size].max()
        number = of_this_size.cumsum(0) - 1  # of a caption within its block
        here = of_this_size[caption[order]]
        at = (number[caption[order]][here], place[here])
        rows = labelled.new_zeros(int(of_this_size.sum()), int(longest))
        rows[at] = labelled[order][here]
        own = torch.full_like(rows, ignore_index)
        own[at] = labels.flatten()[rows[at]]
        yield rows, own


def numbered(labels: Tensor, segments: Optional[Tensor]) -> tuple[Tensor, int]:
    """int64 (B, N): the number of each position's caption in the batch; and how many there are."""
    if segments is None or labels.numel() == 0:
        rows = torch.arange(len(labels), device=labels.device).unsqueeze(1)
        return rows.expand_as(labels), len(labels)
    found, numbers = _keys(labels, segments).unique(return_inverse=True)
    return numbers, len(found)


def _keys(labels: Tensor, segments: Tensor) -> Tensor:
    """int64 (B, N): a different number for each segment of each row."""
    segments = segments.to(labels.device, torch.int64)
    least = segments.min()
    spread = segments.max() - least + 1
    of_row = torch.arange(len(labels), device=labels.device).unsqueeze(1) * spread
    return of_row + segments - least


def reduced_by_caption(
    losses_of: Callable,
    inputs: tuple[Tensor, ...],
    labels: Tensor,
    ignore_index: int,
    reduction: str,
    segments: Optional[Tensor],
    weights: Optional[Tensor],
) -> Tensor:
    """The reduced losses of labels (B, N), each caption's computed as if it were a row.

    losses_of: a function of `inputs`, each (C, L, ...) of (B, N, ...) and the first one logits, and
    of labels (C, L), whose losses are (C, L). The rest is that of `smile_loss`.
    """
    logits = inputs[0]
    check_shapes(logits, labels)
    labels, weights = weigh(labels, weights, ignore_index)
    check_labels(labels, logits.size(2), ignore_index)
    if segments is None:
        losses = losses_of(*inputs, labels)
    else:
        losses = _by_caption(losses_of, inputs, labels, segments, ignore_index)
    return reduce(losses, labels, ignore_index, reduction, weights)


def _by_caption(
    losses_of: Callable, inputs: tuple[Tensor, ...], labels: Tensor, segments: Tensor, ignore: int
) -> Tensor:
    check_segments(segments, labels)
    losses = None
    for rows, own in blocks(labels, segments, ignore):
        found = losses_of(*(x.flatten(0, 1)[rows] for x in inputs), own)
        if losses is None:
            losses = found.new_zeros(labels.numel())
        losses = losses.index_put((rows[own != ignore],), found[own != ignore])
    if losses is None:
        losses = inputs[0].flatten()[:0].sum() + inputs[0].new_zeros(labels.numel())
    return losses.view_as(labels)
