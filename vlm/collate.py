"""Collates photos, prompts and captions into a batch of model inputs.

Tensors with the shape of `input_ids` are text; the others are pixels. Text is padded on the left
for generation and on the right for training. A per-token tensor with more than two dimensions, such
as cross_attention_mask, is extended to the caption by repeating the prompt's last position.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from smile.hf.families import IGNORED
from vlm.image_batch import ImageBatch, Item


def collate_prompts(images: ImageBatch, pad: int) -> dict[str, Tensor]:
    """Collate B prompts, padded on the left."""
    return collate(images.items, pad, left=True)


def collate_decoder_only(
    images: ImageBatch, answers: Sequence[Sequence[int]], pad: int, answer_token_type: int
) -> tuple[dict[str, Tensor], Tensor]:
    """Collate R prompts, each followed by its caption, and labels (R, N), IGNORED at the prompt.

    answer_token_type: the `token_type_ids` of captions, for models that read them.
    """
    items, width = [], 0
    for item, answer in zip(images.items, answers):
        length = item["input_ids"].size(1)
        ids = item["input_ids"].new_tensor([answer])
        new = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        new["token_type_ids"] = torch.full_like(ids, answer_token_type)
        text = {k: v for k, v in item.items() if _is_text(item, k)}
        for key, value in text.items():
            more = new.get(key, torch.zeros_like(ids)).to(value.dtype)
            if value.dim() > 2:
                more = value[:, -1:].repeat_interleave(len(answer), 1)
            text[key] = torch.cat([value, more], 1)
        items.append({**item, **text})
        width = max(width, length + len(answer))
    batch = collate(items, pad)
    labels = torch.full_like(batch["input_ids"], IGNORED)
    for row, (item, answer) in enumerate(zip(items, answers)):
        length = item["input_ids"].size(1)
        labels[row, length - len(answer) : length] = item["input_ids"][0, length - len(answer) :]
    return batch, labels


def collate_encoder_decoder(
    images: ImageBatch, answers: Sequence[Sequence[int]], decoder_prefix: Sequence[int], pad: int
) -> tuple[dict[str, Tensor], Tensor]:
    """Collate inputs of an encoder-decoder, and labels (R, N) aligned with the decoder's positions.

    The decoder reads `decoder_prefix` before each caption.
    """
    batch = collate(images.items, pad)
    device = next(iter(batch.values())).device
    width = len(decoder_prefix) - 1 + max(map(len, answers))
    inputs = torch.full((len(answers), width), pad, device=device)
    labels = torch.full((len(answers), width), IGNORED, device=device)
    start = len(decoder_prefix) - 1
    for row, answer in enumerate(answers):
        whole = torch.tensor([*decoder_prefix, *answer], device=device)
        inputs[row, : len(whole) - 1] = whole[:-1]
        labels[row, start : len(whole) - 1] = whole[start + 1 :]
    return {**batch, "decoder_input_ids": inputs}, labels


def _is_text(item: Item, key: str) -> bool:
    if "input_ids" not in item or key.startswith("pixel"):
        return False
    return item[key].dim() > 1 and item[key].shape[:2] == item["input_ids"].shape


def collate(items: Sequence[Item], pad: int, left: bool = False) -> dict[str, Tensor]:
    """Collate photos into the batch that the processor would return for all of them at once."""
    width = max((i["input_ids"].size(1) for i in items if "input_ids" in i), default=0)
    batch = {}
    for key in items[0]:
        if _is_text(items[0], key):
            value = pad if key == "input_ids" else 0
            rows = [_pad_to(item[key], width, value, left) for item in items]
        else:
            rows = _pad_to_largest([item[key] for item in items])
        batch[key] = torch.cat(rows)
    return batch


def _pad_to(row: Tensor, width: int, value: int, left: bool) -> Tensor:
    """Pad a row (1, n, ...) to (1, width, ...)."""
    missing = width - row.size(1)
    sides = (missing, 0) if left else (0, missing)
    return F.pad(row, (*[0] * (2 * (row.dim() - 2)), *sides), value=value)


def _pad_to_largest(rows: list[Tensor]) -> list[Tensor]:
    """Pad with zeros at the end so that all dimensions but the first are equal."""
    largest = [max(sizes) for sizes in zip(*(row.shape[1:] for row in rows))]
    if all(list(row.shape[1:]) == largest for row in rows):
        return rows
    padded = []
    for row in rows:
        sides: list[int] = []
        for size, most in zip(reversed(row.shape[1:]), reversed(largest)):
            sides += [0, most - size]
        padded.append(F.pad(row, sides))
    return padded
