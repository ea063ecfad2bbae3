"""Where a captioner looks as it says a caption: word by word, on the grid of its image encoder."""

from typing import NamedTuple

from torch import Tensor, nn

from captioning.models.word_by_word import tell
from captioning.runtime.errors import UserError
from decoding import DecodingSettings


class Gaze(NamedTuple):
    """words: of the caption, then "(end)" if it ended; weights: float (words, G, G), each of which
    sums to 1: where the captioner looked before it said the word."""

    words: list[str]
    weights: Tensor


def gaze(captioner: nn.Module, image: Tensor, settings: DecodingSettings) -> Gaze:
    """The caption of an image (3, S, S), normalised, and where each word of it was found.

    Attention LSTM and Show, Attend and Tell: their attention. BLIP: the cross-attention to the
    patches, the mean over heads and layers, without what is given to [CLS]. Raises UserError for a
    captioner that sees the image once.
    """
    told = tell(captioner, image, settings)
    if told.gaze is None:
        raise UserError("this captioner sees the image once, before all words: no gaze to draw")
    return Gaze(told.words, told.gaze)
