"""Computes the MLE and SMILE loss of each token of one human caption, with a trained captioner.

The losses are those of training, but without label smoothing and without first-token MLE.
"""

from typing import NamedTuple, Optional

import torch

from captioning.captioners.interface import Images
from captioning.data.caption_files import ImageId
from captioning.data.dataset import preprocess_caption
from captioning.data.image import load_image
from captioning.metrics.diversity import count_words
from captioning.models.build import captioner_from, preprocessing_of
from captioning.report.comparison import Comparison
from captioning.report.picture import Picture, load_picture
from captioning.report.runs import Run
from captioning.runtime.errors import UserError
from smile.loss import mle_losses, smile_losses

NUM_PREDICTIONS = 5  # how many of the likeliest words are shown for each token
NUM_WORDS = 10  # about how many words the caption has


class Prediction(NamedTuple):
    """A predicted word.

    in_caption: whether the word is in the caption. SMILE's softmax is only over these words.
    """

    word: str
    probability: float  # over the whole vocabulary
    in_caption: bool


class Token(NamedTuple):
    """A token of the caption, and the captioner's predictions of it.

    - label: the token's text
    - mle, smile: the token's losses in nats, so that exp(-loss) is its probability: in a softmax
      over the vocabulary, or over the caption's words
    """

    label: str
    predictions: list[Prediction]  # likeliest first
    mle: float
    smile: float


class TokenFigure(NamedTuple):
    """The losses of the tokens of one human caption, computed with the captioner of `run`."""

    run: Run
    caption: str
    image: Optional[Picture]
    tokens: list[Token]

    @property
    def spared(self) -> Optional[tuple[int, Token]]:
        """The token that SMILE spares most, and its position from 1; None if there is none.

        Candidates are the tokens for which the likeliest word is not in the caption. The one with
        the largest difference of MLE loss - SMILE loss is returned. The first token is left out,
        because in training its loss is MLE, not SMILE (first-token MLE).
        """
        candidates = [
            (n, t) for n, t in enumerate(self.tokens[1:], 2) if not t.predictions[0].in_caption
        ]
        return max(candidates, key=lambda pair: pair[1].mle - pair[1].smile, default=None)


def token_figure(comparison: Comparison) -> TokenFigure:
    """Return the losses of a human caption's tokens, computed with the captioner of one run.

    The run is the first one with a checkpoint that can be loaded. MLE runs are tried before other
    runs. Raises UserError if there are no human captions or no checkpoint can be loaded.
    """
    image_id, caption = choose_caption(comparison)
    path = comparison.image_path(image_id)
    problem = "no run has its best checkpoint in its folder"
    for run in sorted(comparison.runs, key=lambda run: run.kind != "mle"):
        if run.checkpoint is None:
            continue
        try:
            captioner, _ = captioner_from(run.config, str(run.checkpoint))
        except UserError as error:
            problem = str(error)
            continue
        image = preprocessing_of(run.config).one(load_image(path, exif=run.config.exif))
        caption = preprocess_caption(caption, run.config.max_words)
        return TokenFigure(
            run, caption, load_picture(path), token_losses(captioner, image, caption)
        )
    raise UserError(problem)


def choose_caption(comparison: Comparison) -> tuple[ImageId, str]:
    """Return the image id and the text of the first human caption of about NUM_WORDS words.

    Raises UserError if there are no human captions.
    """
    captions = [(i, text) for i, group in comparison.references.items() for text in group]
    if not captions:
        raise UserError("there are no human captions")
    return min(captions, key=lambda pair: abs(count_words(pair[1]) - NUM_WORDS))


@torch.inference_mode()
def token_losses(captioner, image: Images, caption: str) -> list[Token]:
    """Return the tokens of a caption, including the end token. image: a batch of one image."""
    captioner.eval()
    tokenizer = captioner.tokenizer
    logits, labels = captioner.predictions(image, [[caption]])  # (1, N, V), (1, N)
    mle = mle_losses(logits, labels)[0].tolist()
    smile = smile_losses(logits, labels)[0].tolist()
    count = min(NUM_PREDICTIONS, logits.size(2))
    best = logits[0].softmax(1).topk(count)  # values, indices (N, count)
    probabilities, ids = best.values.tolist(), best.indices.tolist()
    caption_ids = labels[0].tolist()
    tokens = []
    for position, label in enumerate(caption_ids):
        predictions = [
            Prediction(_word(tokenizer, token_id, position), probability, token_id in caption_ids)
            for token_id, probability in zip(ids[position], probabilities[position])
        ]
        word = _word(tokenizer, label, position)
        tokens.append(Token(word, predictions, mle[position], smile[position]))
    return tokens


def _word(tokenizer, token_id: int, position: int) -> str:
    """Return a token's text. A `##` piece, which continues the previous word, gets a dash: "-s".

    With first-token shifting, the first token (position 0) may be a `##` piece, too. It continues
    no word, so it gets no dash.
    """
    if token_id == tokenizer.end:
        return "(end)"
    piece = tokenizer.token(token_id)
    dash = "-" if position else ""
    return f"{dash}{piece[2:]}" if piece.startswith("##") else piece
