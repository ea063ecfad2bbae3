"""Collates photos, prompts and captions into a batch of model inputs.

Tensors with the shape of `input_ids` are text; the others are pixels. Text is padded on the left
for generation and on the right for training. A per-token tensor with more than two dimensions, such
as cross_attention_mask, is extended to the caption by repeating the prompt's last position.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from smile.hf.families import IGNORED
from vlm.image_batch import ImageBatch, Item


def collate_decoder_only(
    images: ImageBatch, answers: Sequence[Sequence[int]], pad: int, answer_token_type: int
) -> tuple[dict[str, Tensor], Tensor]:
    """Collate R prompts, each followed by its caption, and labels (R, N), IGNORED at the prompt.

    answer_token_type: the `token_type_ids` of captions, for models that read them.
    """
    items = []
    for item, answer in zip(images.items, answers):
        prompt = item["input_ids"]
        ids = prompt.new_tensor([answer])
        added = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
        added["token_type_ids"] = torch.full_like(ids, answer_token_type)
        item = {**item, "labels": torch.full_like(prompt, IGNORED)}
        for key in [key for key in item if _is_text(item, key)]:
            value = item[key]
            more = added.get(key, torch.zeros_like(ids)).to(value.dtype)
            if value.dim() > 2:
                more = value[:, -1:].repeat_interleave(len(answer), 1)
            item[key] = torch.cat([value, more], 1)
        items.append(item)
    batch = collate(items, pad)
    return batch, batch.pop("labels")


def collate_encoder_decoder(
    images: ImageBatch, answers: Sequence[Sequence[int]], decoder_prefix: Sequence[int], pad: int
) -> tuple[dict[str, Tensor], Tensor]:
    """Collate inputs of an encoder-decoder, and labels (R, N) aligned with the decoder's positions.

    The decoder reads `decoder_prefix` before each caption.
    """
    batch = collate(images.items, pad)
    device = next(iter(batch.values())).device
    rows = [torch.tensor([*decoder_prefix, *answer], device=device) for answer in answers]
    labels = pad_sequence([row[1:] for row in rows], True, IGNORED)
    labels[:, : len(decoder_prefix) - 1] = IGNORED
    inputs = pad_sequence([row[:-1] for row in rows], True, pad)
    return {**batch, "decoder_input_ids": inputs}, labels


def _is_text(item: Item, key: str) -> bool:
    if "input_ids" not in item or key.startswith("pixel"):
        return False
    return item[key].dim() > 1 and item[key].shape[:2] == item["input_ids"].shape


def collate(items: Sequence[Item], pad: int, left: bool = False) -> dict[str, Tensor]:
    """Collate photos into the batch that the processor would return for all of them at once.

    left: pad text on the left.
    """
    batch = {}
    for key in items[0]:
        value = {"input_ids": pad, "labels": IGNORED}.get(key, 0)
        on_the_left = left and _is_text(items[0], key)
        rows = [item[key] for item in items]
        sizes = [max(of_rows) for of_rows in zip(*(row.shape[1:] for row in rows))]
        batch[key] = torch.cat([_padded(row, sizes, value, on_the_left) for row in rows])
    return batch


def _padded(row: Tensor, sizes: list[int], value: int, left: bool) -> Tensor:
    """Pad the dimensions of a row after the first to `sizes`, at the end or on the left."""
    if list(row.shape[1:]) == sizes:
        return row
    sides: list[int] = []
    for size, most in zip(reversed(row.shape[1:]), reversed(sizes)):
        sides += [most - size, 0] if left else [0, most - size]
    return F.pad(row, sides, value=value)
