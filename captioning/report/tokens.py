"""The loss of each token of one caption under MLE and SMILE, by a trained captioner.

The losses are the training losses without label smoothing and without first-token MLE.
"""

from typing import NamedTuple, Optional

import torch

from captioning.captioners.interface import Images
from captioning.data import load_image, preprocess_caption
from captioning.data.caption_files import ImageId
from captioning.metrics.diversity import words
from captioning.models.build import captioner_from, preprocessing_of
from captioning.report.comparison import Comparison
from captioning.report.picture import Picture, picture
from captioning.report.runs import Run
from captioning.runtime.errors import UserError
from smile import mle_loss, smile_loss

TOP = 5  # predicted words per token
QUANTILE, LONGEST = 0.6, 12  # quantile of length and most words: longer than most, fits the page


class Prediction(NamedTuple):
    """A predicted word. own: whether it is in the caption, so that SMILE's softmax includes it."""

    word: str
    probability: float  # over the whole vocabulary
    own: bool


class Token(NamedTuple):
    """A token to be predicted. mle, smile: its losses in nats."""

    label: str
    predictions: list[Prediction]  # the likeliest first
    probability: float  # of the label, over the vocabulary
    own_probability: float  # over the caption's own words
    mle: float
    smile: float


class TokenPicture(NamedTuple):
    run: Run
    caption: str
    image: Optional[Picture]
    tokens: list[Token]


def token_picture(comparison: Comparison) -> TokenPicture:
    """The tokens of one human caption, for the first run trained with MLE, else the first run.

    Raises UserError if something is missing.
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
        return TokenPicture(run, caption, picture(path), token_costs(captioner, image, caption))
    raise UserError(problem)


def choose_caption(comparison: Comparison) -> tuple[ImageId, str]:
    """The first human caption with the length of the 60 % quantile, at most 12 words."""
    captions = [(i, text) for i, group in comparison.references.items() for text in group]
    if not captions:
        raise UserError("there are no human captions")
    counts = sorted(words(text) for _, text in captions)
    wanted = min(counts[int(QUANTILE * (len(counts) - 1))], LONGEST)
    return min(captions, key=lambda pair: abs(words(pair[1]) - wanted))


@torch.inference_mode()
def token_costs(captioner, image: Images, caption: str) -> list[Token]:
    """The tokens of a caption with its end token. image: a batch of one."""
    captioner.eval()
    tokenizer = captioner.tokenizer
    logits, labels = captioner.predictions(image, [[caption]])  # (1, N, V), (1, N)
    mle = mle_loss(logits, labels, reduction="none")[0]
    smile = smile_loss(logits, labels, reduction="none")[0]
    top = logits[0].softmax(1).topk(min(TOP, logits.size(2)))  # (N, TOP)
    own = set(labels[0].tolist())
    found = []
    for n, label in enumerate(labels[0].tolist()):
        predictions = [
            Prediction(_word(tokenizer, i, n), probability, i in own)
            for i, probability in zip(top.indices[n].tolist(), top.values[n].tolist())
        ]
        probabilities = (-mle[n]).exp().item(), (-smile[n]).exp().item()
        costs = mle[n].item(), smile[n].item()
        found.append(Token(_word(tokenizer, label, n), predictions, *probabilities, *costs))
    return found


def _word(tokenizer, token_id: int, place: int) -> str:
    """A token's text; "-s" if it continues the previous word.

    With first-token shifting, the first token (place 0) may be such a piece.
    """
    if token_id == tokenizer.end:
        return "(end)"
    piece = tokenizer.token(token_id)
    dash = "-" if place else ""
    return f"{dash}{piece[2:]}" if piece.startswith("##") else piece


def spared(tokens: list[Token]) -> Optional[tuple[int, Token]]:
    """(position counted from 1, token) with the largest difference of the MLE and SMILE losses.

    Only tokens for which the model prefers a word that is not in the caption. The first token is
    left out, because first-token MLE scores it.
    """
    outside = [(n, t) for n, t in enumerate(tokens[1:], 2) if not t.predictions[0].own]
    return max(outside, key=lambda pair: pair[1].mle - pair[1].smile, default=None)


def charged(tokens: list[Token]) -> Optional[tuple[int, Token]]:
    """Like `spared`: the token with the largest SMILE loss.

    Only tokens for which the model prefers another word of the caption.
    """
    preferred = [(n, t, t.predictions[0]) for n, t in enumerate(tokens[1:], 2)]
    inside = [(n, t) for n, t, best in preferred if best.own and best.word != t.label]
    return max(inside, key=lambda pair: pair[1].smile, default=None)
