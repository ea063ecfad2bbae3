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
from smile.hf.families import (
    IGNORED,
    check_words,
    configured,
    encoder_decoder,
    in_step,
    is_one_of,
    media_of,
    opening_tokens,
    without_media,
)
from smile.hf.refusal import refuse
from smile.mixture import scores_first_token
from smile.objective import Objective

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
    "row {row} of the labels has more than one run of them or begins with a special token, but "
    "from logits a compiled encoder-decoder model takes a row for one caption; give segments, or "
    "from_hidden=True"
)
PROMPT = (
    "row {row} of the labels scores text next to an image, video or sound as if it were a caption; "
    "set all but the caption to -100, media tokens too (of TRL, completion_only_loss=True or "
    "assistant_only_loss=True), or give segments"
)


class Targets:
    """What is to be predicted, by caption.

    labels: int64 (B, N); with `shifted` the n-th is what position n of the text predicts, otherwise
    what stands there. segments: (B, N), the captions, or None. weights: (B, N), (B,) or None.
    given: the batch, of which seq_idx, cu_seq_lens_q or position_ids say where a row's texts begin;
    the first label of a text is not scored, since it does not follow from the text before. In each
    text an unbroken run of labels, as an assistant's turn, is a caption, whatever its weights.

    Special tokens at the beginning of an encoder-decoder model's labels (`<s>`, a language) are
    captions of one token each: first-token MLE scores them over the whole vocabulary, as it does
    the first word after them, since `generate` has to predict those that it is not forced to begin
    with. Truncation, which goes by whole captions, leaves them out, as does SMILE alone without
    first-token MLE, by which they would lose nothing.

    read_values: False where only the scored labels are asked for. Otherwise the device is waited
    for once, to look for an attention mask that lets packed captions see each other and, unless the
    objective is MLE, to which captions are the same, for rows that are packed without saying so and
    for labelled prompts. from_hidden: whether the objective is made of hidden states. ValueError
    for such rows, and for shapes that do not match.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        labels: Tensor,
        shifted: bool = False,
        segments: Optional[Tensor] = None,
        weights: Optional[Tensor] = None,
        given: Optional[dict] = None,
        read_values: bool = True,
        from_hidden: bool = False,
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
        self.model, self.shifted, self.weights = model, shifted, weights
        given = given or {}
        self.tokens = given.get("input_ids")
        self.labels, self.segments = without_media(model, labels), segments
        self.decodes = encoder_decoder(model)
        if self.decodes:
            if shifted:
                raise ValueError(
                    f"{type(model).__name__} takes labels; give these for shift_labels"
                )
            self.rows, given = None, {}  # what the batch says of positions is of the encoder's
        else:
            self._leave_out_firsts(given)
        captions = None
        if segments is None and objective.weights.keys() != {"mle"}:
            only_smile = objective.weights.keys() == {"smile"}
            unscored = only_smile and not scores_first_token("smile", objective.first_token_mle)
            captions = self._captions(unscored or "truncation" in objective.weights)
        if read_values:
            self._look(given, labels, captions, from_hidden)

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

    def _captions(self, without_openings: bool) -> Tensor:
        """int64 (B, N), the number of the caption that a label is of."""
        if not self.decodes:
            return captions_of_turns(self.labels, self.rows)
        special = is_one_of(self.labels, opening_tokens(self.model))
        words = (self.labels != IGNORED) & ~special
        opening = special & (words.cumsum(1) == 0)
        if without_openings:
            self.labels = self.labels.masked_fill(opening, IGNORED)
        number = opening.cumsum(1)
        return captions_of_turns(self.labels, number + nn.functional.pad(number, (1, -1)))

    def _look(self, given, labels: Tensor, captions: Optional[Tensor], from_hidden: bool) -> None:
        """Take the captions for segments where a row has several. Raises ValueError for packed
        rows or labelled prompts.

        labels: (B, N) as they were given.
        """
        compiling = torch.compiler.is_compiling()
        wrong = {LEAKS: leaks(given.get("attention_mask"), self.rows)}
        if captions is not None:
            wrong.update(self._signs(given, labels, captions))
            # A row that is one caption needs no segments, and costs less without them.
            wrong[SEVERAL] = captions.amax(1) > 1
            if compiling and (from_hidden or not self.decodes):  # else it stays one graph
                self.segments = captions
                del wrong[SEVERAL]
        wrong = {line: rows for line, rows in wrong.items() if rows is not None}
        if not wrong:
            return
        found = torch.stack([rows.to(labels.device) for rows in wrong.values()])  # (K, B)
        if not compiling:
            found = found.cpu()  # the device is waited for here alone
            if wrong.pop(SEVERAL, None) is not None and found[-1].any():
                self.segments = captions
        self.labels = refuse(found, [*wrong], self.labels)

    def _signs(self, given, labels: Tensor, captions: Tensor) -> dict[str, Optional[Tensor]]:
        """error line -> rows (B,) it applies to."""
        found = {}
        if self.rows is None:
            mask = given.get("attention_mask")
            refuse_masks(mask)
            if mask is not None and len(mask) == len(labels):
                found[packs("has numbers above 1")] = (mask > 1).any(1)
        if ends := sorted(configured(self.model, "eos_token_id")):
            found[goes_on_after(ends)] = end_again(ends, self.labels, captions)
        if not self.decodes:
            found[PROMPT] = self._prompts(labels)
        return found

    def _prompts(self, labels: Tensor) -> Optional[Tensor]:
        """bool (B,): whether scored labels (B, N) next to media tokens are of no caption: before
        them; or after them where these have labels too, or a text begins by a special token."""
        tokens = labels if self.tokens is None else self.tokens.to(labels.device)
        if self.shifted:
            labels = nn.functional.pad(labels, (1, -1), value=IGNORED)  # where they stand
        if tokens.shape != labels.shape:
            return None
        media, labelled = media_of(self.model, tokens), labels != IGNORED
        begins = is_one_of(labels, configured(self.model, "bos_token_id"))
        rows = torch.zeros_like(labels) if self.rows is None else self.rows
        same = rows[:, 1:] == rows[:, :-1]
        scored = labelled & nn.functional.pad(same, (1, 0))  # a text's first token is not
        before = scored[:, :-1] & ~media[:, :-1] & media[:, 1:]
        after = labelled[:, 1:] & ~media[:, 1:] & media[:, :-1]
        beside = before | (after & (labelled[:, :-1] | begins[:, 1:]))
        return (beside & same).any(1)

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


def leaks(mask, rows: Optional[Tensor]) -> Optional[Tensor]:
    """bool (B,): whether an attention mask (B, N) goes on where another text begins in `rows`."""
    if rows is None or not isinstance(mask, Tensor) or mask.shape != rows.shape:
        return None
    goes_on = (mask[:, 1:] > 0) & (mask[:, :-1] > 0)
    return (goes_on & (rows[:, 1:] != rows[:, :-1]).to(mask.device)).any(1)


def end_again(ends: list[int], labels: Tensor, captions: Tensor) -> Tensor:
    """bool (B,): whether one of the captions, numbered from 0 to N in (B, N), ends more than once.

    An end that follows another, as where padding is labelled, is the same one; a first token is a
    beginning, for which some models have the same token.
    """
    labelled = labels != IGNORED
    is_end = is_one_of(labels, ends)
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
