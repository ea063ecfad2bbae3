"""Collates photos, prompts and captions into a batch of model inputs.

An item is the dict of tensors that the processor returns for one photo and its prompt. A tensor of
an item is text if its first two dimensions equal those of `input_ids`; all other tensors belong to
the image. Text is padded on the left for generation and on the right for training.

For training, the caption is appended to each text tensor. A text tensor with more than two
dimensions, such as cross_attention_mask, is extended by copies of its last position.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from smile.loss import IGNORE
from vlm.image_batch import ImageBatch, Item


def collate_decoder_only(
    images: ImageBatch, caption_ids: Sequence[Sequence[int]], pad: int, caption_token_type: int
) -> tuple[dict[str, Tensor], Tensor]:
    """Collate R prompts with their captions. Return the model's inputs and the labels (R, N).

    Labels are IGNORE at the prompt and at padding. images: R items. caption_ids: the ids of R
    captions, each with the end token. pad: the id of the padding token. caption_token_type: the
    value of `token_type_ids` at caption tokens, for models that read it.
    """
    items = []
    for item, token_ids in zip(images.items, caption_ids):
        prompt = item["input_ids"]
        ids = prompt.new_tensor([token_ids])
        caption_values = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
        caption_values["token_type_ids"] = torch.full_like(ids, caption_token_type)
        item = {**item, "labels": torch.full_like(prompt, IGNORE)}
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
    """Collate R rows for an encoder-decoder. Return the model's inputs and the labels (R, N).

    images, caption_ids, pad: see `collate_decoder_only`. decoder_prefix: the ids that the decoder
    reads before each caption. They have no labels.
    """
    batch = collate(images.items, pad)
    device = next(iter(batch.values())).device
    rows = [torch.tensor([*decoder_prefix, *token_ids], device=device) for token_ids in caption_ids]
    labels = pad_sequence([row[1:] for row in rows], batch_first=True, padding_value=IGNORE)
    labels[:, : len(decoder_prefix) - 1] = IGNORE
    inputs = pad_sequence([row[:-1] for row in rows], batch_first=True, padding_value=pad)
    return {**batch, "decoder_input_ids": inputs}, labels


def _is_text(item: Item, key: str) -> bool:
    if "input_ids" not in item or key.startswith("pixel"):
        return False
    return item[key].dim() > 1 and item[key].shape[:2] == item["input_ids"].shape


def collate(items: Sequence[Item], pad: int, left: bool = False) -> dict[str, Tensor]:
    """Collate items into one batch, as the processor would return it for all photos at once.

    pad: the id of the padding token. left: pad text on the left instead of the right.
    """
    batch = {}
    for key in items[0]:
        padding_value = {"input_ids": pad, "labels": IGNORE}.get(key, 0)
        pad_left = left and _is_text(items[0], key)
        rows = [item[key] for item in items]
        target_shape = [max(lengths) for lengths in zip(*(row.shape[1:] for row in rows))]
        batch[key] = torch.cat([_pad(row, target_shape, padding_value, pad_left) for row in rows])
    return batch


def _pad(row: Tensor, target_shape: list[int], value: int, left: bool) -> Tensor:
    """Pad all dimensions except the first to `target_shape`.

    value: the padding value. left: pad on the left instead of the right.
    """
    if list(row.shape[1:]) == target_shape:
        return row
    padding = []
    for size, target in zip(reversed(row.shape[1:]), reversed(target_shape)):
        padding += [target - size, 0] if left else [0, target - size]
    return F.pad(row, padding, value=value)
