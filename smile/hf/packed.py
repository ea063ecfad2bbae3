"""Finds scored labels and captions in a batch of rows that may contain several texts (packed)."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smile.captions import (
    captions_of_turns,
    check_segments,
    segments_from_cu_seq_lens,
    segments_from_position_ids,
)
from smile.hf.head_table import UNSHIFTED, class_names
from smile.hf.label_alignment import (
    IGNORE_INDEX,
    align_labels,
    is_encoder_decoder,
    is_media,
    is_one_of,
    opening_tokens,
)
from smile.hf.refusal import refuse
from smile.hf.wrong_rows import find_wrong_rows
from smile.labels import prepare_weights
from smile.mixture import scores_first_token
from smile.objective import Objective

BATCH_KEYS = ("segments", "weights")  # keys of a batch that the objective uses besides labels


class AlignedTargets(NamedTuple):
    """Predictions with their labels, in the order of the arguments of an `Objective`.

    predictions: logits or hidden states (B, N, X). The other fields are (B, N); weights may also be
    (B,).
    """

    predictions: Tensor
    labels: Tensor
    segments: Optional[Tensor]
    weights: Optional[Tensor]


class Targets:
    """Determines which labels of a batch are scored, and to which caption each label belongs.

    batch: the arguments of the model's forward.

    - labels: int64 (B, N), the token at each position; or shift_labels, the next token.
    - segments: (B, N), the number of each position's caption, or None.
    - weights: floats, (B, N) for tokens or (B,) for rows, or None.
    - seq_idx, cu_seq_lens_q or position_ids determine where texts begin.

    `inputs` is a copy of the batch without labels, segments and weights.

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

    def __init__(self, model: nn.Module, objective: Objective, batch: Mapping[str, Any]):
        inputs = dict(batch)
        labels = inputs.pop("labels", None)
        shift_labels = inputs.pop("shift_labels", None)
        segments = inputs.pop("segments", None)
        self.weights = inputs.pop("weights", None)
        self.model = model
        self.inputs = inputs
        if shift_labels is not None:
            labels = shift_labels
        self.shifted = shift_labels is not None or not UNSHIFTED.isdisjoint(class_names(model))
        if labels.dim() != 2 or labels.is_floating_point():
            raise ValueError(
                f"labels of {tuple(labels.shape)} in {labels.dtype}; give integers of the shape "
                "(captions, tokens)"
            )
        prepare_weights(labels, self.weights, IGNORE_INDEX)  # checks the weights
        if segments is not None:
            check_segments(segments, labels)
            segments = segments.to(labels.device)
        self.original_labels = labels
        self.segments = segments
        self.labels = labels.masked_fill(is_media(model, labels), IGNORE_INDEX)
        self.is_encoder_decoder = is_encoder_decoder(model)
        self.texts = None
        if not self.is_encoder_decoder:
            self._ignore_first_labels()
        elif self.shifted:
            raise ValueError(
                f"{type(model).__name__} does not accept shift_labels; give labels instead"
            )
        self.captions = None
        if segments is None and objective.weights.keys() != {"mle"}:
            without_openings = "truncation" in objective.weights
            if objective.weights.keys() == {"smile"}:
                without_openings = not scores_first_token("smile", objective.first_token_mle)
            self.captions = self._number_captions(without_openings)

    def _ignore_first_labels(self) -> None:
        """Set `texts`, and ignore labels that another text or segment would have to predict."""
        labels = self.labels
        self.texts = text_numbers(self.inputs, self.labels)
        if self.texts is not None:
            is_first = self.texts[:, 1:] != self.texts[:, :-1]  # (B, N - 1), for tokens 1 to N - 1
            is_first = F.pad(is_first, (0, 1) if self.shifted else (1, 0))
            self.labels = self.labels.masked_fill(is_first, IGNORE_INDEX)
        if self.segments is not None:
            # Only a label that follows another label is ignored here. A label that follows a prompt
            # is scored: the prompt may have another number, although both are one text.
            is_first = self.segments[:, 1:] != self.segments[:, :-1]
            is_first = F.pad(is_first & (labels[:, :-1] != IGNORE_INDEX), (1, 0))
            self.labels = self.labels.masked_fill(is_first, IGNORE_INDEX)

    def _number_captions(self, without_openings: bool) -> Tensor:
        """Return int64 (B, N), the number of each label's caption.

        without_openings: set the special tokens at the beginning of `labels` to IGNORE_INDEX.
        """
        if not self.is_encoder_decoder:
            return captions_of_turns(self.labels, self.texts)
        is_special = is_one_of(self.labels, opening_tokens(self.model))
        is_word = (self.labels != IGNORE_INDEX) & ~is_special
        is_opening = is_special & (is_word.cumsum(1) == 0)
        if without_openings:
            self.labels = self.labels.masked_fill(is_opening, IGNORE_INDEX)
        # The sum changes at each special token and at the first word after the special tokens.
        number = is_opening.cumsum(1)
        return captions_of_turns(self.labels, number + F.pad(number, (1, -1)))

    def set_segments(self) -> "Targets":
        """Set `segments` if a row has several captions. Returns this object.

        Raises ValueError for a packed row if its captions could attend to each other or cannot be
        found, and for a row with a labelled prompt.
        """
        rows_by_error = find_wrong_rows(self)
        flags = [rows.to(self.labels.device) for rows in rows_by_error.values()]
        if self.captions is not None:
            flags.append(self.captions.amax(1) > 1)
        if not flags:
            return self
        compiling = torch.compiler.is_compiling()
        flags = torch.stack(flags)
        if not compiling:
            flags = flags.cpu()  # one transfer from the device for all
        # Rows of one caption are faster without segments. A compiled program cannot read how many
        # captions rows have, so that it always uses segments.
        if self.captions is not None and (compiling or flags[-1].any()):
            self.segments = self.captions
        if rows_by_error:
            self.labels = refuse(flags[: len(rows_by_error)], [*rows_by_error], self.labels)
        return self

    def align(self, predictions: Tensor) -> AlignedTargets:
        """Align labels, segments and weights with the predictions.

        predictions: logits or hidden states (B, M, X), M >= N; see `align_labels`.
        """
        predictions, labels = align_labels(
            self.model, predictions, self.labels, self.shifted, self.inputs.get("input_ids")
        )
        segments = self.segments
        weights = self.weights
        if segments is not None:
            segments = segments[:, -labels.size(1) :].to(labels.device)
        if weights is not None and weights.dim() == 2:
            weights = weights[:, -labels.size(1) :]
        return AlignedTargets(predictions, labels, segments, weights)


def text_numbers(inputs: dict, labels: Tensor) -> Optional[Tensor]:
    """Return int64 (B, N), the number of each token's text in its row, or None if it is unknown."""
    if inputs.get("seq_idx") is not None:
        name = "seq_idx"
        numbers = inputs["seq_idx"]
    elif inputs.get("cu_seq_lens_q") is not None:
        name = "cu_seq_lens_q"
        numbers = segments_from_cu_seq_lens(inputs[name], labels.size(1))
    elif inputs.get("position_ids") is not None:
        name = "position_ids"
        numbers = segments_from_position_ids(inputs["position_ids"])
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
