"""Which captions a batch of a trainer holds, where a row can be several texts one after another."""

from typing import Optional

import torch
from torch import Tensor, nn

from smile.captions import (
    captions_of_turns,
    check_segments,
    segments_from_cu_seq_lens,
    segments_from_position_ids,
)
from smile.hf.families import IGNORED, check_words, encoder_decoder, in_step, without_media
from smile.hf.refusal import refuse

OF_A_BATCH = ("segments", "weights")  # what the objective takes of it besides labels
SAY = (
    "give the batch position_ids that start again with each caption, seq_idx or cu_seq_lens_q, or "
    "segments, in which the positions of a caption have the same number"
)
LEAKS = (
    "the batch has an attention_mask, with which captions of a packed row see each other; leave it "
    "out, or give one of 4 dimensions that keeps them apart"
)
SEVERAL = (
    "row {row} of the labels has more than one run of them, which a compiled model of encoder and "
    "decoder takes for one caption; give segments"
)


class Targets:
    """What is to be predicted, by caption.

    labels: int64 (B, N); with `shifted` the n-th is what position n of the text predicts, otherwise
    what stands there. segments: (B, N), the captions, or None. weights: (B, N), (B,) or None.
    given: the batch, of which seq_idx, cu_seq_lens_q or position_ids say where a row's texts begin;
    the first label of a text is not scored, since it does not follow from the text before. In each
    text an unbroken run of labels, as an assistant's turn, is a caption, whatever its weights.
    read_values: whether to look for rows that are packed without saying so, which an accelerator
    has to be waited for. by_caption: False for an objective to which captions are the same. number:
    of the model, as `refuse` has it. ValueError for such rows, and for shapes that do not match.
    """

    def __init__(
        self,
        model: nn.Module,
        labels: Tensor,
        shifted: bool = False,
        segments: Optional[Tensor] = None,
        weights: Optional[Tensor] = None,
        given: Optional[dict] = None,
        read_values: bool = True,
        by_caption: bool = True,
        number: int = 0,
    ):
        check_words(labels)
        if weights is not None and weights.shape not in (labels.shape, labels.shape[:1]):
            raise ValueError(
                f"weights is {tuple(weights.shape)}, but labels is {tuple(labels.shape)}; "
                "give one for each label, or one for each row"
            )
        if segments is not None:
            check_segments(segments, labels)
            segments = segments.to(labels.device)
        self.model, self.shifted, self.weights, self.number = model, shifted, weights, number
        given = given or {}
        self.tokens = given.get("input_ids")
        self.labels, self.segments = without_media(model, labels), segments
        if encoder_decoder(model):
            if shifted:
                raise ValueError(
                    f"{type(model).__name__} takes labels; give these for shift_labels"
                )
            self.rows, given = None, {}  # what the batch says of positions is of the encoder's
        else:
            self._leave_out_firsts(given)
            if self.rows is not None and read_values:
                self._refuse(leaks(given.get("attention_mask"), self.rows), LEAKS)
        if segments is None and by_caption:
            self._find_captions(given, read_values)

    def _leave_out_firsts(self, given: dict) -> None:
        """Ignore the label of each text's first token."""
        self.rows, labels = texts(given, self.labels), self.labels
        if self.rows is not None:
            begins = self.rows[:, 1:] != self.rows[:, :-1]  # (B, N - 1), of tokens 1 to N - 1
            begins = nn.functional.pad(begins, (0, 1) if self.shifted else (1, 0))
            self.labels = self.labels.masked_fill(begins, IGNORED)
        if self.segments is not None:
            # What follows a prompt is no other text, though it has a number of its own.
            begins = self.segments[:, 1:] != self.segments[:, :-1]
            begins = nn.functional.pad(begins & (labels[:, :-1] != IGNORED), (1, 0))
            self.labels = self.labels.masked_fill(begins, IGNORED)

    def _find_captions(self, given: dict, read_values: bool) -> None:
        if self.rows is None:
            mask = given.get("attention_mask")
            refuse_masks(mask)
            if mask is not None and read_values:
                self._refuse((mask > 1).any(1), packs("has numbers above 1"))
        captions = captions_of_turns(self.labels, self.rows)
        compiling = torch.compiler.is_compiling()
        ends = end_tokens(self.model)
        if ends and read_values:
            self._refuse(end_again(ends, self.labels, captions), goes_on_after(ends))
        if compiling and encoder_decoder(self.model):
            self._refuse(captions.amax(1) > 1, SEVERAL)  # so that it stays one graph
        # A row that is one caption needs no segments, and costs less without them.
        elif compiling or captions.amax() > 1:
            self.segments = captions

    def _refuse(self, wrong: Optional[Tensor], line: str) -> None:
        if wrong is not None:
            self.labels = refuse(wrong, line, self.labels, self.number)

    def of(self, predictions: Tensor) -> tuple[Tensor, Tensor, Optional[Tensor], Optional[Tensor]]:
        """What an objective takes, for logits or hidden states (B, M, X), M >= N: those that
        predict a label, the labels, segments and weights."""
        predictions, labels = in_step(
            self.model, predictions, self.labels, self.shifted, self.tokens
        )
        segments, weights = self.segments, self.weights
        if segments is not None:
            segments = segments[:, -labels.size(1) :].to(labels.device)
        if weights is not None and weights.dim() == 2:
            weights = weights[:, -labels.size(1) :]
        return predictions, labels, segments, weights


def texts(given: dict, labels: Tensor) -> Optional[Tensor]:
    """int64 (B, N), the number of the text of its row that a token is in, where the batch says."""
    if given.get("seq_idx") is not None:
        name, found = "seq_idx", given["seq_idx"]
    elif given.get("cu_seq_lens_q") is not None:
        name = "cu_seq_lens_q"
        found = segments_from_cu_seq_lens(given[name], labels.size(1))
    elif given.get("position_ids") is not None:
        name, found = "position_ids", segments_from_position_ids(given["position_ids"])
        if len(found) == 1:
            found = found.expand(len(labels), -1)
    else:
        return None
    if found.shape != labels.shape:
        raise ValueError(
            f"{name} is for {tuple(found.shape)} tokens, but labels is {tuple(labels.shape)}; give "
            "one for each label"
        )
    return found.to(labels.device)


def refuse_masks(mask) -> None:
    """ValueError for an attention mask whose shape can keep texts of a row apart."""
    if isinstance(mask, Tensor) and mask.dim() > 2:
        raise ValueError(packs(f"is {tuple(mask.shape)}"))
    if mask is not None and not isinstance(mask, Tensor):
        raise ValueError(packs("is of the model's own"))


def packs(found: str) -> str:
    return f"attention_mask {found}, so a row can hold more than one caption, but not where; {SAY}"


def leaks(mask, rows: Tensor) -> Optional[Tensor]:
    """bool (B,): whether an attention mask (B, N) goes on where another text begins in `rows`."""
    if not isinstance(mask, Tensor) or mask.shape != rows.shape:
        return None
    goes_on = (mask[:, 1:] > 0) & (mask[:, :-1] > 0)
    return (goes_on & (rows[:, 1:] != rows[:, :-1]).to(mask.device)).any(1)


def end_again(ends: list[int], labels: Tensor, captions: Tensor) -> Tensor:
    """bool (B,): whether one of the captions, numbered from 0 to N in (B, N), ends more than once.

    An end that follows another, as where padding is labelled, is the same one; a first token is a
    beginning, for which some models have the same token.
    """
    labelled = labels != IGNORED
    is_end = torch.isin(labels, labels.new_tensor(ends)) & labelled
    word_before = (labelled & ~is_end)[:, :-1] & (captions[:, 1:] == captions[:, :-1])
    found = (is_end[:, 1:] & word_before).long()
    times = found.new_zeros(len(labels), labels.size(1) + 1).scatter_add(1, captions[:, 1:], found)
    return (times > 1).any(1)


def goes_on_after(ends: list[int]) -> str:
    tokens = " or ".join(map(str, ends))
    return (
        f"row {{row}} of the labels goes on after token {tokens}, which ends a caption, and ends "
        "again, so it seems to hold more than one; of a chat label the assistant's turns alone "
        f"(TRL: SFTConfig(assistant_only_loss=True)); of a packed row {SAY}"
    )


def end_tokens(model: nn.Module) -> list[int]:
    """Those that the configurations name."""
    config = model.config
    places = (config, getattr(config, "text_config", None), getattr(model, "generation_config", 0))
    found = set()
    for place in places:
        tokens = getattr(place, "eos_token_id", None)
        found.update(tokens if isinstance(tokens, (list, tuple)) else [tokens])
    return sorted(found - {None})
