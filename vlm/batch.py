"""Batches of preprocessed photos and captions for a model of transformers.

An item is the dict of tensors that the processor returns for one photo and its prompt. A tensor of
an item is text if its first two dimensions equal those of `input_ids`; all other tensors belong to
the image. Text is padded on the left for generation and on the right for training.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Optional, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from smile.loss import IGNORE

Item = dict[str, Tensor]  # the output of `vlm.prompt.PromptProcessor` for one photo


class ImageBatch:
    """B photos with their prompts, not yet padded. items: the processor's output for each photo.

    Implements `captioning.captioners.interface.Images`.
    """

    def __init__(self, items: list[Item]):
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Union[slice, list[int]]) -> "ImageBatch":
        selected = self.items[index] if isinstance(index, slice) else [self.items[i] for i in index]
        return ImageBatch(selected)

    def to(self, device: torch.device, non_blocking: bool = False) -> "ImageBatch":
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "ImageBatch":
        return self._map(Tensor.pin_memory)

    def share_memory_(self) -> "ImageBatch":
        return self._map(Tensor.share_memory_)

    def is_floating_point(self) -> bool:
        """Return True, because the processor has already normalised the images."""
        return True

    def _map(self, function) -> "ImageBatch":
        return ImageBatch([{k: function(v) for k, v in item.items()} for item in self.items])


def with_caption(
    item: Item,
    token_ids: Sequence[int],
    decoder_prefix: Sequence[int],
    token_type: Optional[int] = None,
) -> Item:
    """Return an item with a caption and its `labels`, which are IGNORE at the prompt.

    - token_ids: the caption with its end token.
    - decoder_prefix: the ids that the decoder of an encoder-decoder reads before the caption. If
      it is empty, the model is decoder-only, and the caption follows the prompt.
    - token_type: the value of `token_type_ids` at the caption; None for that of the prompt's end.
    """
    if decoder_prefix:
        texts = {
            "decoder_input_ids": [*decoder_prefix, *token_ids[:-1]],
            "labels": [*[IGNORE] * (len(decoder_prefix) - 1), *token_ids],
        }
        device = next(iter(item.values())).device
        return item | {key: torch.tensor([ids], device=device) for key, ids in texts.items()}
    length = item["input_ids"].size(1)
    item = item | {
        key: torch.cat([value, value[:, -1:].repeat_interleave(len(token_ids), 1)], 1)
        for key, value in item.items()
        if _is_text(item, key)
    }
    item["input_ids"][:, length:] = torch.tensor(token_ids)
    if token_type is not None:
        item["token_type_ids"][:, length:] = token_type
    labels = item["input_ids"].clone()
    labels[:, :length] = IGNORE
    return {**item, "labels": labels}


def _is_text(item: Item, key: str) -> bool:
    is_aligned = "input_ids" in item and item[key].shape[:2] == item["input_ids"].shape
    return is_aligned and not key.startswith("pixel")


def collate(items: Sequence[Item], pad: int, left: bool = False) -> dict[str, Tensor]:
    """Collate items into one batch, as the processor would return it for all photos at once.

    pad: the id of the padding token. left: pad text on the left instead of the right.
    """
    padding_values = {"input_ids": pad, "decoder_input_ids": pad, "labels": IGNORE}
    batch = {}
    for key in items[0]:
        pad_left = left and _is_text(items[0], key)
        rows = [item[key] for item in items]
        shape = [max(sizes) for sizes in zip(*(row.shape[1:] for row in rows))]
        padded = []
        for row in rows:
            lengths = [target - size for size, target in zip(row.shape[1:], shape)]
            pairs = ((n, 0) if pad_left else (0, n) for n in reversed(lengths))
            padded.append(F.pad(row, [*chain(*pairs)], value=padding_values.get(key, 0)))
        batch[key] = torch.cat(padded)
    return batch
