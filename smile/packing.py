"""Finds the captions of rows that hold several (packed rows), and of rows that are long.

`segments` are integers (B, N), aligned with the labels. Positions of a row with the same number
belong to the same caption.
"""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from smile.loss import IGNORE

# Of rows of this length only labelled positions are read: SMILE's cost grows with the length's
# square, and most positions of a long row are a prompt or an image.
LONG_ROW = 128


def caption_blocks(
    labels: Tensor, segments: Optional[Tensor], whole_rows: bool = False
) -> list[tuple[Tensor, Tensor]]:
    """Return blocks of captions of similar length, one caption per row.

    labels, segments: (B, N). A block is (positions, labels), int64 (C, L) each; positions in the
    flattened batch. Padding has position 0 and label IGNORE. In a block the longest caption has
    less than twice the length of the shortest. Without segments, short rows are one block; long
    rows, too, if they must be `whole_rows`.
    """
    positions = torch.arange(labels.numel(), device=labels.device).view_as(labels)
    if segments is None:
        if labels.size(1) < LONG_ROW or whole_rows:
            return [(positions, labels)] if labels.numel() else []
        segments = torch.zeros_like(labels)
    scored = labels != IGNORE
    rows = positions[:, :1].expand_as(labels)
    captions = torch.stack([rows, segments.to(rows).expand_as(labels)], 2)[scored]  # (M, 2)
    _, caption, lengths = captions.unique(dim=0, return_inverse=True, return_counts=True)
    blocks: dict[int, list[Tensor]] = {}  # by the exponent of the next power of 2
    by_caption = positions[scored][caption.argsort(stable=True)].split(lengths.tolist())
    for indices in by_caption:
        blocks.setdefault((len(indices) - 1).bit_length(), []).append(indices)
    padded = [pad_sequence(block, batch_first=True, padding_value=-1) for block in blocks.values()]
    flat = labels.flatten()
    return [(block.clamp(min=0), flat[block].masked_fill(block < 0, IGNORE)) for block in padded]


def segments_from_position_ids(position_ids: Tensor) -> Tensor:
    """Return segments, int64 (B, N). A segment begins wherever positions restart.

    position_ids: (B, N) or (N,); or (3, B, N), positions in time, height and width, where all
    tokens of an image have the same time; or (4, B, N), text positions followed by these.
    """
    positions = position_ids[0] if position_ids.dim() == 3 else position_ids
    smallest_step = 0 if position_ids.dim() == 3 and len(position_ids) == 3 else 1
    restarts = torch.atleast_2d(positions).diff(dim=1) < smallest_step
    return F.pad(restarts, (1, 0)).cumsum(1)


def captions_of_turns(labels: Tensor, segments: Optional[Tensor] = None) -> Tensor:
    """Return segments, int64 (B, N), in which each contiguous run of labels is a caption.

    Such a run may be an assistant's turn in a chat. labels: (B, N). segments: (B, N) or None; a run
    also ends where the segment changes.
    """
    ends = labels[:, :-1] == IGNORE
    if segments is not None:
        ends = ends | (segments.diff(dim=1) != 0)
    return (F.pad(ends, (1, 0), value=True) & (labels != IGNORE)).cumsum(1)
