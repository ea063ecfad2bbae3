"""Photos, questions and captions as the rows that a model reads.

A tensor of a photo is of its text if it has as many places as its `input_ids`; all others are of
its pixels. Text is padded at the left to be written on, and at the right in training. Per-token
tensors with more than two dimensions (cross_attention_mask) repeat the question's last position for
the answer.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from smile.hf.families import IGNORED
from vlm.image_batch import Item, Pictures


def questions(pictures: Pictures, pad: int) -> dict[str, Tensor]:
    """B questions, padded at the left."""
    return joined(pictures.items, pad, at_the_left=True)


def answered(
    pictures: Pictures, answers: Sequence[Sequence[int]], pad: int, type_of_words: int
) -> tuple[dict[str, Tensor], Tensor]:
    """R questions with an answer each, padded at the right, and labels (R, N): IGNORED but for the
    answers. type_of_words: what `token_type_ids`, if any, are in an answer."""
    items, width = [], 0
    for item, answer in zip(pictures.items, answers):
        length = item["input_ids"].size(1)
        said = item["input_ids"].new_tensor([answer])
        new = {"input_ids": said, "attention_mask": torch.ones_like(said)}
        new["token_type_ids"] = torch.full_like(said, type_of_words)
        text = {k: v for k, v in item.items() if _of_text(item, k)}
        for key, value in text.items():
            more = new.get(key, torch.zeros_like(said)).to(value.dtype)
            if value.dim() > 2:
                more = value[:, -1:].repeat_interleave(len(answer), 1)
            text[key] = torch.cat([value, more], 1)
        items.append({**item, **text})
        width = max(width, length + len(answer))
    batch = joined(items, pad)
    labels = torch.full_like(batch["input_ids"], IGNORED)
    for row, (item, answer) in enumerate(zip(items, answers)):
        length = item["input_ids"].size(1)
        labels[row, length - len(answer) : length] = item["input_ids"][0, length - len(answer) :]
    return batch, labels


def decoded(
    pictures: Pictures, answers: Sequence[Sequence[int]], begin: Sequence[int], pad: int
) -> tuple[dict[str, Tensor], Tensor]:
    """What an encoder-decoder reads, its answers with `begin` before them in the decoder, and
    labels (R, N) in step with that."""
    batch = joined(pictures.items, pad)
    device = next(iter(batch.values())).device
    width = len(begin) - 1 + max(map(len, answers))
    inputs = torch.full((len(answers), width), pad, device=device)
    labels = torch.full((len(answers), width), IGNORED, device=device)
    start = len(begin) - 1
    for row, answer in enumerate(answers):
        whole = torch.tensor([*begin, *answer], device=device)
        inputs[row, : len(whole) - 1] = whole[:-1]
        labels[row, start : len(whole) - 1] = whole[start + 1 :]
    return {**batch, "decoder_input_ids": inputs}, labels


def _of_text(item: Item, key: str) -> bool:
    if "input_ids" not in item or key.startswith("pixel"):
        return False
    return item[key].dim() > 1 and item[key].shape[:2] == item["input_ids"].shape


def joined(items: Sequence[Item], pad: int, at_the_left: bool = False) -> dict[str, Tensor]:
    """The batch that the processor would make of these photos together."""
    width = max((i["input_ids"].size(1) for i in items if "input_ids" in i), default=0)
    batch = {}
    for key in items[0]:
        if _of_text(items[0], key):
            filler = pad if key == "input_ids" else 0
            rows = [_to_width(item[key], width, filler, at_the_left) for item in items]
        else:
            rows = _alike([item[key] for item in items])
        batch[key] = torch.cat(rows)
    return batch


def _to_width(row: Tensor, width: int, filler: int, at_the_left: bool) -> Tensor:
    """row: (1, n, ...), made (1, width, ...)."""
    lacking = width - row.size(1)
    sides = (lacking, 0) if at_the_left else (0, lacking)
    return F.pad(row, (*[0] * (2 * (row.dim() - 2)), *sides), value=filler)


def _alike(rows: list[Tensor]) -> list[Tensor]:
    """Zeros put behind each so that all dimensions but the first are equal."""
    largest = [max(sizes) for sizes in zip(*(row.shape[1:] for row in rows))]
    if all(list(row.shape[1:]) == largest for row in rows):
        return rows
    made = []
    for row in rows:
        sides: list[int] = []
        for size, most in zip(reversed(row.shape[1:]), reversed(largest)):
            sides += [0, most - size]
        made.append(F.pad(row, sides))
    return made
