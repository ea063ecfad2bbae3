"""Finds rows of a batch that are refused, because it is unclear where their captions are."""

import torch
import torch.nn.functional as F
from torch import Tensor

from smile.hf.label_alignment import IGNORE_INDEX, configured_ids, is_media, is_one_of

# Error lines. `smile.hf.refusal.refuse` replaces {row}.
REMEDY = (
    "give the batch position_ids that restart with each caption, seq_idx or cu_seq_lens_q, or "
    "segments, in which all positions of a caption have the same number"
)
MASK_ERROR = (
    "attention_mask {}, so a row may have several captions, but it is unknown where; " + REMEDY
)
END_ERROR = (
    "row {row} of the labels has the end token {end} more than once, so it seems to have several "
    "captions; in a chat, label only the assistant's turns (TRL: "
    "SFTConfig(assistant_only_loss=True)); for a packed row, " + REMEDY
)
LEAK_ERROR = (
    "the batch has an attention_mask, with which captions of a packed row see each other; leave it "
    "out, or give a mask of 4 dimensions that separates them"
)
PROMPT_ERROR = (
    "row {row} of the labels scores text next to an image, video or sound as if it were a caption; "
    "set all labels but the caption's to -100, also at media tokens (in TRL, "
    "completion_only_loss=True or assistant_only_loss=True), or give segments"
)


def find_wrong_rows(targets) -> dict[str, Tensor]:
    """Return {error line: bool (B,), the rows with this error}. targets: a `Targets`."""
    rows_by_error = {}
    mask = targets.inputs.get("attention_mask")
    texts = targets.texts
    if texts is not None and isinstance(mask, Tensor) and mask.shape == texts.shape:
        attends_both = (mask[:, 1:] > 0) & (mask[:, :-1] > 0)
        is_leak = attends_both & (texts[:, 1:] != texts[:, :-1]).to(mask.device)
        rows_by_error[LEAK_ERROR] = is_leak.any(1)
    if targets.captions is None:
        return rows_by_error
    if texts is None and mask is not None and not targets.is_encoder_decoder:
        if not isinstance(mask, Tensor):
            raise ValueError(MASK_ERROR.format(f"is a {type(mask).__name__}"))
        if mask.dim() > 2:
            raise ValueError(MASK_ERROR.format(f"is {tuple(mask.shape)}"))
        if len(mask) == len(targets.labels):
            rows_by_error[MASK_ERROR.format("has numbers above 1")] = (mask > 1).any(1)
    if ends := sorted(configured_ids(targets.model, "eos_token_id")):
        error = END_ERROR.replace("{end}", " or ".join(map(str, ends)))
        rows_by_error[error] = find_repeated_ends(ends, targets.labels, targets.captions)
    if not targets.is_encoder_decoder:
        rows_by_error[PROMPT_ERROR] = _find_prompts(targets)
    return rows_by_error


def _find_prompts(targets) -> Tensor:
    """Return bool (B,): rows in which a prompt next to media tokens is labelled.

    A label directly before a media token belongs to a prompt. A label directly after a media
    token belongs to a prompt if the media token is labelled, too, or if the label is a
    `bos_token_id`. If input_ids and labels have different shapes, no row is true, because
    `Targets.align` then raises ValueError.
    """
    labels = targets.original_labels
    tokens = targets.inputs.get("input_ids")
    tokens = labels if tokens is None else tokens.to(labels.device)
    if targets.shifted:
        labels = F.pad(labels, (1, -1), value=IGNORE_INDEX)  # undo the shift
    if tokens.shape != labels.shape:
        return labels[:, :0].any(1)
    is_media_token = is_media(targets.model, tokens)
    is_labelled = labels != IGNORE_INDEX
    is_start = is_one_of(labels, configured_ids(targets.model, "bos_token_id"))
    texts = torch.zeros_like(labels) if targets.texts is None else targets.texts
    same_text = texts[:, 1:] == texts[:, :-1]
    # A text's first token is not scored.
    is_scored = is_labelled & F.pad(same_text, (1, 0))
    before = is_scored[:, :-1] & ~is_media_token[:, :-1] & is_media_token[:, 1:]
    after = is_labelled[:, 1:] & ~is_media_token[:, 1:] & is_media_token[:, :-1]
    adjacent = before | (after & (is_labelled[:, :-1] | is_start[:, 1:]))
    return (adjacent & same_text).any(1)


def find_repeated_ends(end_tokens: list[int], labels: Tensor, captions: Tensor) -> Tensor:
    """Return bool (B,): rows in which a caption contains more than one end.

    captions: (B, N), the number of each position's caption, from 0 to N. Consecutive end tokens,
    such as labelled padding, count as one end. An end token at the beginning of a caption does not
    count, because some models begin a text with the end token.
    """
    is_labelled = labels != IGNORE_INDEX
    is_end = is_one_of(labels, end_tokens)
    word_before = (is_labelled & ~is_end)[:, :-1] & (captions[:, 1:] == captions[:, :-1])
    is_caption_end = (is_end[:, 1:] & word_before).long()
    end_count = is_caption_end.new_zeros(len(labels), labels.size(1) + 1).scatter_add(
        1, captions[:, 1:], is_caption_end
    )
    return (end_count > 1).any(1)
