"""Finds scored labels and captions in a batch of rows that may contain several texts (packed)."""

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
    align_labels,
    configured_ids,
    is_encoder_decoder,
    is_media,
    is_one_of,
    opening_tokens,
)
from smile.hf.refusal import refuse
from smile.labels import prepare_weights
from smile.mixture import scores_first_token
from smile.objective import Objective

BATCH_KEYS = ("segments", "weights")  # keys of a batch that the objective uses besides labels
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


class Targets:
    """Determines which labels of a batch are scored, and to which caption each label belongs.

    - labels: int64 (B, N), the token at each position; with `shifted`, the next token.
    - segments: (B, N), the number of each position's caption, or None.
    - weights: floats, (B, N) for tokens or (B,) for rows, or None.
    - inputs: the batch without labels, segments and weights. Its seq_idx, cu_seq_lens_q or
      position_ids determine where texts begin.

    The constructor raises ValueError for shapes that do not match.

    In packed rows, the first label of a text is not scored, because the previous text does not
    predict this label. Each contiguous run of labels in a text, such as an assistant's turn, is a
    caption. Weights do not change captions.

    Labels of an encoder-decoder model may begin with special tokens, such as `<s>` or a language's
    token. Each such token counts as a caption of one token, and the words after these tokens are
    another caption. First-token MLE thus scores each special token and the first word over the
    whole vocabulary, because `generate` may have to predict them. Truncation does not score the
    special tokens, because it drops whole captions. SMILE without first-token MLE does not score
    them either, because their loss would be 0.
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
        if labels.dim() != 2 or labels.is_floating_point():
            found = f"labels of {tuple(labels.shape)} in {labels.dtype}"
            raise ValueError(f"{found}; give integers of the shape (captions, tokens)")
        prepare_weights(labels, weights, IGNORED)  # checks the weights
        if segments is not None:
            check_segments(segments, labels)
            segments = segments.to(labels.device)
        self.model, self.shifted, self.weights = model, shifted, weights
        self.inputs, self.original_labels = inputs or {}, labels
        self.labels, self.segments = labels.masked_fill(is_media(model, labels), IGNORED), segments
        self.is_encoder_decoder, self.texts = is_encoder_decoder(model), None
        if self.is_encoder_decoder:
            if shifted:
                raise ValueError(
                    f"{type(model).__name__} does not accept shift_labels; give labels instead"
                )
        else:
            self._ignore_first_labels()
        self.captions = None
        if segments is None and objective.weights.keys() != {"mle"}:
            without_openings = "truncation" in objective.weights
            if objective.weights.keys() == {"smile"}:
                without_openings = not scores_first_token("smile", objective.first_token_mle)
            self.captions = self._number_captions(without_openings)

    def _ignore_first_labels(self) -> None:
        """Set `texts`, and ignore labels that another text or segment would have to predict."""
        labels, self.texts = self.labels, text_numbers(self.inputs, self.labels)
        if self.texts is not None:
            is_first = self.texts[:, 1:] != self.texts[:, :-1]  # (B, N - 1), for tokens 1 to N - 1
            is_first = nn.functional.pad(is_first, (0, 1) if self.shifted else (1, 0))
            self.labels = self.labels.masked_fill(is_first, IGNORED)
        if self.segments is not None:
            # Only a label that follows another label is ignored here. A label that follows a prompt
            # is scored: the prompt may have another number, although both are one text.
            is_first = self.segments[:, 1:] != self.segments[:, :-1]
            is_first = nn.functional.pad(is_first & (labels[:, :-1] != IGNORED), (1, 0))
            self.labels = self.labels.masked_fill(is_first, IGNORED)

    def _number_captions(self, without_openings: bool) -> Tensor:
        """Return int64 (B, N), the number of each label's caption.

        without_openings: set the special tokens at the beginning of `labels` to IGNORED.
        """
        if not self.is_encoder_decoder:
            return captions_of_turns(self.labels, self.texts)
        is_special = is_one_of(self.labels, opening_tokens(self.model))
        is_word = (self.labels != IGNORED) & ~is_special
        is_opening = is_special & (is_word.cumsum(1) == 0)
        if without_openings:
            self.labels = self.labels.masked_fill(is_opening, IGNORED)
        # The sum changes at each special token and at the first word after the special tokens.
        number = is_opening.cumsum(1)
        return captions_of_turns(self.labels, number + nn.functional.pad(number, (1, -1)))

    def check(self) -> "Targets":
        """Set `segments` if a row has several captions. Returns this object.

        Raises ValueError for a packed row if its captions could attend to each other or cannot be
        found, and for a row with a labelled prompt.
        """
        rows_by_error = self._find_wrong_rows()
        flags = [rows.to(self.labels.device) for rows in rows_by_error.values()]
        if self.captions is not None:
            compiling = torch.compiler.is_compiling()
            flags = torch.stack([*flags, self.captions.amax(1) > 1])
            flags = flags if compiling else flags.cpu()  # one transfer from the device for all
            # Rows of one caption are faster without segments. A compiled program cannot read how
            # many captions rows have, so that it always uses segments.
            if compiling or flags[-1].any():
                self.segments = self.captions
            flags = [*flags[:-1]]
        if rows_by_error:
            self.labels = refuse(torch.stack(flags), [*rows_by_error], self.labels)
        return self

    def _find_wrong_rows(self) -> dict[str, Tensor]:
        """Return {error line: bool (B,), the rows with this error}."""
        rows_by_error, mask, texts = {}, self.inputs.get("attention_mask"), self.texts
        if texts is not None and isinstance(mask, Tensor) and mask.shape == texts.shape:
            attends_both = (mask[:, 1:] > 0) & (mask[:, :-1] > 0)
            is_leak = attends_both & (texts[:, 1:] != texts[:, :-1]).to(mask.device)
            rows_by_error[LEAK_ERROR] = is_leak.any(1)
        if self.captions is None:
            return rows_by_error
        if texts is None and mask is not None and not self.is_encoder_decoder:
            if not isinstance(mask, Tensor):
                raise ValueError(MASK_ERROR.format(f"is a {type(mask).__name__}"))
            if mask.dim() > 2:
                raise ValueError(MASK_ERROR.format(f"is {tuple(mask.shape)}"))
            if len(mask) == len(self.labels):
                rows_by_error[MASK_ERROR.format("has numbers above 1")] = (mask > 1).any(1)
        if ends := sorted(configured_ids(self.model, "eos_token_id")):
            error = END_ERROR.replace("{end}", " or ".join(map(str, ends)))
            rows_by_error[error] = find_repeated_ends(ends, self.labels, self.captions)
        if not self.is_encoder_decoder:
            rows_by_error[PROMPT_ERROR] = self._find_prompts()
        return rows_by_error

    def _find_prompts(self) -> Tensor:
        """Return bool (B,): rows in which a prompt next to media tokens is labelled.

        A label directly before a media token belongs to a prompt. A label directly after a media
        token belongs to a prompt if the media token is labelled, too, or if the label is a
        `bos_token_id`. If input_ids and labels have different shapes, no row is true, because
        `align` then raises ValueError.
        """
        labels, tokens = self.original_labels, self.inputs.get("input_ids")
        tokens = labels if tokens is None else tokens.to(labels.device)
        if self.shifted:
            labels = nn.functional.pad(labels, (1, -1), value=IGNORED)  # undo the shift
        if tokens.shape != labels.shape:
            return labels[:, :0].any(1)
        is_media_token, is_labelled = is_media(self.model, tokens), labels != IGNORED
        is_start = is_one_of(labels, configured_ids(self.model, "bos_token_id"))
        texts = torch.zeros_like(labels) if self.texts is None else self.texts
        same_text = texts[:, 1:] == texts[:, :-1]
        # A text's first token is not scored.
        is_scored = is_labelled & nn.functional.pad(same_text, (1, 0))
        before = is_scored[:, :-1] & ~is_media_token[:, :-1] & is_media_token[:, 1:]
        after = is_labelled[:, 1:] & ~is_media_token[:, 1:] & is_media_token[:, :-1]
        adjacent = before | (after & (is_labelled[:, :-1] | is_start[:, 1:]))
        return (adjacent & same_text).any(1)

    def align(
        self, predictions: Tensor
    ) -> tuple[Tensor, Tensor, Optional[Tensor], Optional[Tensor]]:
        """Return (predictions, labels, segments, weights), aligned, as an `Objective` takes them.

        predictions: logits or hidden states (B, M, X), M >= N; see `align_labels`.
        """
        tokens = self.inputs.get("input_ids")
        predictions, labels = align_labels(
            self.model, predictions, self.labels, self.shifted, tokens
        )
        segments, weights = self.segments, self.weights
        if segments is not None:
            segments = segments[:, -labels.size(1) :].to(labels.device)
        if weights is not None and weights.dim() == 2:
            weights = weights[:, -labels.size(1) :]
        return predictions, labels, segments, weights


def text_numbers(inputs: dict, labels: Tensor) -> Optional[Tensor]:
    """Return int64 (B, N), the number of each token's text in its row, or None if it is unknown."""
    if inputs.get("seq_idx") is not None:
        name, numbers = "seq_idx", inputs["seq_idx"]
    elif inputs.get("cu_seq_lens_q") is not None:
        name = "cu_seq_lens_q"
        numbers = segments_from_cu_seq_lens(inputs[name], labels.size(1))
    elif inputs.get("position_ids") is not None:
        name, numbers = "position_ids", segments_from_position_ids(inputs["position_ids"])
        if len(numbers) == 1:
            numbers = numbers.expand(len(labels), -1)
    else:
        return None
    if numbers.shape != labels.shape:
        raise ValueError(
            f"{name} is for {tuple(numbers.shape)} tokens, but labels is {tuple(labels.shape)}; "
            "give one for each label"
        )
    return numbers.to(labels.device)


def find_repeated_ends(end_tokens: list[int], labels: Tensor, captions: Tensor) -> Tensor:
    """Return bool (B,): rows in which a caption contains more than one end.

    captions: (B, N), the number of each position's caption, from 0 to N. Consecutive end tokens,
    such as labelled padding, count as one end. An end token at the beginning of a caption does not
    count, because some models begin a text with the end token.
    """
    is_labelled = labels != IGNORED
    is_end = is_one_of(labels, end_tokens)
    word_before = (is_labelled & ~is_end)[:, :-1] & (captions[:, 1:] == captions[:, :-1])
    is_caption_end = (is_end[:, 1:] & word_before).long()
    end_count = is_caption_end.new_zeros(len(labels), labels.size(1) + 1).scatter_add(
        1, captions[:, 1:], is_caption_end
    )
    return (end_count > 1).any(1)
