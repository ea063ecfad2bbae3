"""How long captions are."""

from captioning.metrics import bootstrap
from captioning.metrics.evaluator import CaptionSet, Evaluator, Result


class Length(Evaluator):
    """cap_len: words a caption, split at white space, punctuation and all."""

    names = ("cap_len",)

    def evaluate(self, captions: CaptionSet) -> Result:
        lengths = [len(caption.split()) for caption in captions.predictions.values()]
        return Result({"cap_len": bootstrap.mean(lengths)}, {"cap_len": lengths})
