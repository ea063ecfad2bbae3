"""Finds the labels and captions of a batch, whose rows may contain several texts (packed rows)."""

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
    check_tokens,
    configured,
    encoder_decoder,
    in_step,
    is_one_of,
    media_of,
    opening_tokens,
    without_media,
)
from smile.hf.refusal import refuse
from smile.labels import weigh
from smile.mixture import scores_first_token
from smile.objective import Objective

OF_A_BATCH = ("segments", "weights")  # keys of a batch that the objective uses besides labels
REMEDY = (
    "give the batch position_ids that restart with each caption, seq_idx or cu_seq_lens_q, or "
    "segments, in which all positions of a caption have the same number"
)
LEAKS = (
    "the batch has an attention_mask, with which captions of a packed row see each other; leave it "
    "out, or give a mask of 4 dimensions that separates them"
)
PROMPT = (
    "row {row} of the labels scores text next to an image, video or sound as if it were a caption; "
    "set all labels but the caption's to -100, also at media tokens (in TRL, "
    "completion_only_loss=True or assistant_only_loss=True), or give segments"
)


class Targets:
    """The labels of a batch that are scored, and their captions.

    - labels: int64 (B, N), the token at each position; with `shifted`, the next token.
    - segments: (B, N), the captions, or None.
    - weights: (B, N), (B,) or None.
    - inputs: the batch. seq_idx, cu_seq_lens_q or position_ids determine where texts begin.

    Raises ValueError for shapes that do not match.

    In packed rows, the first label of a text is not scored, because the previous text does not
    predict it. Each contiguous run of labels in a text, such as an assistant's turn, is a caption.
    Weights do not change captions.

    Labels of an encoder-decoder model may begin with special tokens (`<s>`, a language). Each of
    them is a caption of one token. First-token MLE scores them, and the first word after them, over
    the whole vocabulary, because `generate` has to predict those that are not forced. They are left
    out by truncation, which drops whole captions, and by SMILE without first-token MLE, in which
    their loss would be 0.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        labels: Tensor,
        shifted: bool = False,
        segments: Optional[Tensor] = None,
        weights: Optional[Tensor] = None,
        inputs: Optional[dict] = None,
    ):
        check_tokens(labels)
        weigh(labels, weights, IGNORED)  # checks the weights
        if segments is not None:
            check_segments(segments, labels)
            segments = segments.to(labels.device)
        self.model, self.shifted, self.weights = model, shifted, weights
        self.inputs, self.given = inputs or {}, labels
        self.labels, self.segments = without_media(model, labels), segments
        self.is_encoder_decoder, self.texts = encoder_decoder(model), None
        if self.is_encoder_decoder:
            if shifted:
                raise ValueError(
                    f"{type(model).__name__} does not accept shift_labels; give labels instead"
                )
        else:
            self._ignore_first_labels()
        self.captions = None
        if segments is None and objective.weights.keys() != {"mle"}:
            only_smile = objective.weights.keys() == {"smile"}
            unscored = only_smile and not scores_first_token("smile", objective.first_token_mle)
            self.captions = self._captions(unscored or "truncation" in objective.weights)

    def _ignore_first_labels(self) -> None:
        labels, self.texts = self.labels, texts(self.inputs, self.labels)
        if self.texts is not None:
            begins = self.texts[:, 1:] != self.texts[:, :-1]  # (B, N - 1), for tokens 1 to N - 1
            begins = nn.functional.pad(begins, (0, 1) if self.shifted else (1, 0))
            self.labels = self.labels.masked_fill(begins, IGNORED)
        if self.segments is not None:
            # A prompt may have another number than its caption, although both are one text.
            begins = self.segments[:, 1:] != self.segments[:, :-1]
            begins = nn.functional.pad(begins & (labels[:, :-1] != IGNORED), (1, 0))
            self.labels = self.labels.masked_fill(begins, IGNORED)

    def _captions(self, without_openings: bool) -> Tensor:
        """int64 (B, N), the number of each label's caption."""
        if not self.is_encoder_decoder:
            return captions_of_turns(self.labels, self.texts)
        special = is_one_of(self.labels, opening_tokens(self.model))
        words = (self.labels != IGNORED) & ~special
        opening = special & (words.cumsum(1) == 0)
        if without_openings:
            self.labels = self.labels.masked_fill(opening, IGNORED)
        number = opening.cumsum(1)
        return captions_of_turns(self.labels, number + nn.functional.pad(number, (1, -1)))

    def check(self) -> "Targets":
        """Set `segments` if a row has several captions. Returns itself.

        Raises ValueError for packed rows in which captions could see each other or whose captions
        are unknown, and for labelled prompts. Synchronises with the device once.
        """
        wrong = {}
        if not self.is_encoder_decoder:
            wrong[LEAKS] = leaks(self.inputs.get("attention_mask"), self.texts)
        if self.captions is not None:
            wrong.update(self._signs())
        wrong = {line: rows for line, rows in wrong.items() if rows is not None}
        found = [rows.to(self.labels.device) for rows in wrong.values()]
        if torch.compiler.is_compiling():
            self.segments = self.segments if self.captions is None else self.captions
        elif self.captions is not None:
            # Segments are set only if necessary: rows of one caption are faster without them.
            found = [torch.stack([*found, self.captions.amax(1) > 1]).cpu()]
            self.segments = self.captions if found[0][-1].any() else None
            found = [*found[0]]
        if wrong:
            self.labels = refuse(torch.stack(found), [*wrong], self.labels)
        return self

    def _signs(self) -> dict[str, Optional[Tensor]]:
        """Error lines, each with the rows (B,) that it applies to."""
        found = {}
        mask = self.inputs.get("attention_mask")
        if self.texts is None and not self.is_encoder_decoder:
            refuse_masks(mask)
            if mask is not None and len(mask) == len(self.labels):
                found[packs("has numbers above 1")] = (mask > 1).any(1)
        if ends := sorted(configured(self.model, "eos_token_id")):
            found[goes_on_after(ends)] = end_again(ends, self.labels, self.captions)
        if not self.is_encoder_decoder:
            found[PROMPT] = self._prompts()
        return found

    def _prompts(self) -> Optional[Tensor]:
        """bool (B,): rows with labels next to media tokens that are of no caption: before them, or
        after them where they have labels too or a text begins with a special token."""
        labels, tokens = self.given, self.inputs.get("input_ids")
        tokens = labels if tokens is None else tokens.to(labels.device)
        if self.shifted:
            labels = nn.functional.pad(labels, (1, -1), value=IGNORED)  # undo the shift
        if tokens.shape != labels.shape:
            return None
        media, labelled = media_of(self.model, tokens), labels != IGNORED
        begins = is_one_of(labels, configured(self.model, "bos_token_id"))
        rows = torch.zeros_like(labels) if self.texts is None else self.texts
        same = rows[:, 1:] == rows[:, :-1]
        scored = labelled & nn.functional.pad(same, (1, 0))  # a text's first token is not scored
        before = scored[:, :-1] & ~media[:, :-1] & media[:, 1:]
        after = labelled[:, 1:] & ~media[:, 1:] & media[:, :-1]
        adjacent = before | (after & (labelled[:, :-1] | begins[:, 1:]))
        return (adjacent & same).any(1)

    def of(self, predictions: Tensor) -> tuple[Tensor, Tensor, Optional[Tensor], Optional[Tensor]]:
        """The arguments of an objective: predictions, labels, segments and weights, aligned.

        predictions: logits or hidden states (B, M, X), M >= N.
        """
        tokens = self.inputs.get("input_ids")
        predictions, labels = in_step(self.model, predictions, self.labels, self.shifted, tokens)
        segments, weights = self.segments, self.weights
        if segments is not None:
            segments = segments[:, -labels.size(1) :].to(labels.device)
        if weights is not None and weights.dim() == 2:
            weights = weights[:, -labels.size(1) :]
        return predictions, labels, segments, weights


def texts(inputs: dict, labels: Tensor) -> Optional[Tensor]:
    """int64 (B, N), the number of each token's text in its row. None if the batch lacks it."""
    if inputs.get("seq_idx") is not None:
        name, found = "seq_idx", inputs["seq_idx"]
    elif inputs.get("cu_seq_lens_q") is not None:
        name = "cu_seq_lens_q"
        found = segments_from_cu_seq_lens(inputs[name], labels.size(1))
    elif inputs.get("position_ids") is not None:
        name, found = "position_ids", segments_from_position_ids(inputs["position_ids"])
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
    """Raise ValueError for an attention mask that may separate the texts of a row."""
    if isinstance(mask, Tensor) and mask.dim() > 2:
        raise ValueError(packs(f"is {tuple(mask.shape)}"))
    if mask is not None and not isinstance(mask, Tensor):
        raise ValueError(packs(f"is a {type(mask).__name__}"))


def packs(found: str) -> str:
    line = f"attention_mask {found}, so a row may have several captions, but it is unknown where"
    return f"{line}; {REMEDY}"


def leaks(mask, texts: Optional[Tensor]) -> Optional[Tensor]:
    """bool (B,): whether an attention mask (B, N) lets one text of a row see another."""
    if texts is None or not isinstance(mask, Tensor) or mask.shape != texts.shape:
        return None
    attends = (mask[:, 1:] > 0) & (mask[:, :-1] > 0)
    return (attends & (texts[:, 1:] != texts[:, :-1]).to(mask.device)).any(1)


def end_again(ends: list[int], labels: Tensor, captions: Tensor) -> Tensor:
    """bool (B,): whether a caption of the row ends more than once.

    ends: the end tokens. captions: (B, N), numbers from 0 to N. Consecutive end tokens, such as
    labelled padding, count once. A first token does not count, because some models begin a text
    with the end token.
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
        f"row {{row}} of the labels has the end token {tokens} more than once, so it seems to "
        "have several captions; in a chat, label only the assistant's turns (TRL: "
        f"SFTConfig(assistant_only_loss=True)); for a packed row, {REMEDY}"
    )
