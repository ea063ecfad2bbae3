"""How long captions are."""

from captioning.metrics import bootstrap
from captioning.metrics.evaluator import CaptionSet, Evaluator, Result


def words(caption: str) -> int:
    """How many words a caption has, split at white space, punctuation and all."""
    return len(caption.split())


class Length(Evaluator):
    """cap_len: words a caption."""

    names = ("cap_len",)

    def evaluate(self, captions: CaptionSet) -> Result:
        lengths = [words(caption) for caption in captions.predictions.values()]
        return Result({"cap_len": bootstrap.mean(lengths)}, {"cap_len": lengths})
