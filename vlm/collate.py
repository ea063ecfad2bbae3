"""Collates photos, prompts and captions into a batch of model inputs.

Tensors whose first two dimensions equal those of `input_ids` are text; the others are pixels. Text
is padded on the left for generation and on the right for training. A caption is appended to each
text tensor of its prompt. If that has more than two dimensions, such as cross_attention_mask, its
last position is repeated for the caption.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from smile.hf.families import IGNORED
from vlm.image_batch import ImageBatch, Item


def collate_decoder_only(
    images: ImageBatch, caption_ids: Sequence[Sequence[int]], pad: int, caption_token_type: int
) -> tuple[dict[str, Tensor], Tensor]:
    """Collate R prompts with their captions. Return the model's inputs and labels (R, N).

    Labels are IGNORED at the prompt. images: R items; caption_ids: R captions with the end token.
    pad: the padding token's id. caption_token_type: the `token_type_ids` of captions, for models
    that read them.
    """
    items = []
    for item, token_ids in zip(images.items, caption_ids):
        prompt = item["input_ids"]
        ids = prompt.new_tensor([token_ids])
        caption_values = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
        caption_values["token_type_ids"] = torch.full_like(ids, caption_token_type)
        item = {**item, "labels": torch.full_like(prompt, IGNORED)}
        for key in [key for key in item if _is_text(item, key)]:
            value = item[key]
            extension = caption_values.get(key, torch.zeros_like(ids)).to(value.dtype)
            if value.dim() > 2:
                extension = value[:, -1:].repeat_interleave(len(token_ids), 1)
            item[key] = torch.cat([value, extension], 1)
        items.append(item)
    batch = collate(items, pad)
    return batch, batch.pop("labels")


def collate_encoder_decoder(
    images: ImageBatch,
    caption_ids: Sequence[Sequence[int]],
    decoder_prefix: Sequence[int],
    pad: int,
) -> tuple[dict[str, Tensor], Tensor]:
    """Collate R inputs of an encoder-decoder. Return the inputs and the decoder's labels (R, N).

    The decoder reads `decoder_prefix` before each caption.
    """
    batch = collate(images.items, pad)
    device = next(iter(batch.values())).device
    rows = [torch.tensor([*decoder_prefix, *token_ids], device=device) for token_ids in caption_ids]
    labels = pad_sequence([row[1:] for row in rows], True, IGNORED)
    labels[:, : len(decoder_prefix) - 1] = IGNORED
    inputs = pad_sequence([row[:-1] for row in rows], True, pad)
    return {**batch, "decoder_input_ids": inputs}, labels


def _is_text(item: Item, key: str) -> bool:
    if "input_ids" not in item or key.startswith("pixel"):
        return False
    return item[key].dim() > 1 and item[key].shape[:2] == item["input_ids"].shape


def collate(items: Sequence[Item], pad: int, left: bool = False) -> dict[str, Tensor]:
    """Collate items into the batch that the processor would return for all of them at once.

    left: whether text is padded on the left.
    """
    batch = {}
    for key in items[0]:
        padding_value = {"input_ids": pad, "labels": IGNORED}.get(key, 0)
        pad_left = left and _is_text(items[0], key)
        rows = [item[key] for item in items]
        target_shape = [max(lengths) for lengths in zip(*(row.shape[1:] for row in rows))]
        batch[key] = torch.cat([_pad(row, target_shape, padding_value, pad_left) for row in rows])
    return batch


def _pad(row: Tensor, target_shape: list[int], value: int, left: bool) -> Tensor:
    """Pad all dimensions but the first to `target_shape`, on the left or on the right."""
    if list(row.shape[1:]) == target_shape:
        return row
    padding: list[int] = []
    for size, target in zip(reversed(row.shape[1:]), reversed(target_shape)):
        padding += [target - size, 0] if left else [0, target - size]
    return F.pad(row, padding, value=value)
