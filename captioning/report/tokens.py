"""The loss of each token of one caption under MLE and SMILE, by a trained captioner.

The losses are the training losses without label smoothing and without first-token MLE.
"""

import math
from typing import NamedTuple, Optional

import torch

from captioning.captioners.interface import Images
from captioning.data import load_image, preprocess_caption
from captioning.data.caption_files import ImageId
from captioning.metrics.diversity import words
from captioning.models.build import captioner_from, preprocessing_of
from captioning.report.comparison import Comparison
from captioning.report.picture import Picture, load_picture
from captioning.report.runs import Run
from captioning.runtime.errors import UserError
from smile import mle_loss, smile_loss

NUM_PREDICTIONS = 5  # the likeliest words that are shown for a token
# The shown caption has the length at this quantile of all human captions, but at most about
# MAX_WORDS words, to fit on the page.
QUANTILE, MAX_WORDS = 0.6, 12


class Prediction(NamedTuple):
    """A predicted word. in_caption: whether it is in the caption, over which SMILE's softmax is."""

    word: str
    probability: float  # over the whole vocabulary
    in_caption: bool


class Token(NamedTuple):
    """A token of the caption and its predictions. mle, smile: its losses in nats."""

    label: str
    predictions: list[Prediction]  # likeliest first
    probability: float  # of the label, over the whole vocabulary
    caption_probability: float  # of the label, over the caption's words
    mle: float
    smile: float


class TokenFigure(NamedTuple):
    run: Run
    caption: str
    image: Optional[Picture]
    tokens: list[Token]


def token_figure(comparison: Comparison) -> TokenFigure:
    """Return the losses of a human caption's tokens by one run's captioner.

    The run is the first whose checkpoint can be loaded, and an MLE run if possible. Raises
    UserError.
    """
    image_id, caption = choose_caption(comparison)
    path = comparison.image_path(image_id)
    original = load_image(path)
    problem = "no run has its best checkpoint in its folder"
    for run in sorted(comparison.runs, key=lambda run: run.kind != "mle"):
        if run.checkpoint is None:
            continue
        try:
            captioner, _ = captioner_from(run.config, str(run.checkpoint))
        except UserError as error:
            problem = str(error)
            continue
        image = preprocessing_of(run.config).one(original)
        caption = preprocess_caption(caption, run.config.max_words)
        return TokenFigure(
            run, caption, load_picture(path), token_losses(captioner, image, caption)
        )
    raise UserError(problem)


def choose_caption(comparison: Comparison) -> tuple[ImageId, str]:
    """Return the id and text of the first human caption of the length closest to the target.

    The target is the length at QUANTILE, or MAX_WORDS if this is shorter. Raises UserError without
    human captions.
    """
    captions = [(i, text) for i, group in comparison.references.items() for text in group]
    if not captions:
        raise UserError("there are no human captions")
    lengths = sorted(words(text) for _, text in captions)
    target = min(lengths[int(QUANTILE * (len(lengths) - 1))], MAX_WORDS)
    return min(captions, key=lambda pair: abs(words(pair[1]) - target))


@torch.inference_mode()
def token_losses(captioner, image: Images, caption: str) -> list[Token]:
    """Return the tokens of a caption, including its end token. image: a batch of one."""
    captioner.eval()
    tokenizer = captioner.tokenizer
    logits, labels = captioner.predictions(image, [[caption]])  # (1, N, V), (1, N)
    mle = mle_loss(logits, labels, reduction="none")[0].tolist()
    smile = smile_loss(logits, labels, reduction="none")[0].tolist()
    count = min(NUM_PREDICTIONS, logits.size(2))
    best = (each.tolist() for each in logits[0].softmax(1).topk(count))  # values, ids (N, count)
    caption_ids = labels[0].tolist()
    tokens = []
    for position, row in enumerate(zip(caption_ids, mle, smile, *best)):
        label, mle_cost, smile_cost, probabilities, ids = row
        predictions = [
            Prediction(_word(tokenizer, token_id, position), probability, token_id in caption_ids)
            for token_id, probability in zip(ids, probabilities)
        ]
        word, costs = _word(tokenizer, label, position), (mle_cost, smile_cost)
        tokens.append(Token(word, predictions, *(math.exp(-cost) for cost in costs), *costs))
    return tokens


def _word(tokenizer, token_id: int, position: int) -> str:
    """Return a token's text; with a dash, such as "-s", if it continues the previous word.

    With first-token shifting, the first token (position 0) may be a `##` piece that continues none.
    """
    if token_id == tokenizer.end:
        return "(end)"
    piece = tokenizer.token(token_id)
    dash = "-" if position else ""
    return f"{dash}{piece[2:]}" if piece.startswith("##") else piece


def find_spared(tokens: list[Token]) -> Optional[tuple[int, Token]]:
    """Return the token that SMILE spares most, and its position from 1; None if there is none.

    It is the token for which MLE's loss exceeds SMILE's most, among those for which the model
    prefers a word that is not in the caption. The first token is left out, because first-token MLE
    scores it.
    """
    candidates = [(n, t) for n, t in enumerate(tokens[1:], 2) if not t.predictions[0].in_caption]
    return max(candidates, key=lambda pair: pair[1].mle - pair[1].smile, default=None)


def find_charged(tokens: list[Token]) -> Optional[tuple[int, Token]]:
    """Return the token that SMILE charges most, and its position from 1; None if there is none.

    It is the token with the largest SMILE loss, among those for which the model prefers another
    word of the caption. The first token is left out as in `find_spared`.
    """
    with_best = [(n, t, t.predictions[0]) for n, t in enumerate(tokens[1:], 2)]
    candidates = [(n, t) for n, t, best in with_best if best.in_caption and best.word != t.label]
    return max(candidates, key=lambda pair: pair[1].smile, default=None)
