"""Computes CLAIR: a language model judges captions (Chan et al. 2023, arXiv 2310.12971).

The question is not worded as in the paper, so that scores differ from the paper's scores. If the
reply lacks the requested JSON object, the caption has no score; the paper's code would take the
first number in the reply, or 0.
"""

from typing import Any

from captioning.metrics.base import CaptionSet, Metric, Scores
from captioning.metrics.judge import Judge


class Clair(Judge):
    """CLAIR: the mean score over the captions that have a score.

    The setting `clair_unread` is the number of captions without a score. The detail `clair_reason`
    is the reason that the language model gives for each score.
    """

    metrics = (
        Metric(
            "CLAIR",
            "CLAIR",
            meaning="how likely the caption describes the references' image, by a language model",
            needs_references=True,
        ),
    )
    name = "clair"
    question = """\
Two sets of captions follow. Decide whether both are about one and the same image.
Candidate captions:
- {caption}
Reference captions:
{lines}
On a scale from 0 to 100, how likely is it that the candidate captions describe the image which \
the reference captions describe? Answer with a JSON object and nothing else. Its key "score" holds \
a number from 0 to 100, and its key "reason" holds a string."""

    def evaluate(self, captions: CaptionSet) -> Scores:
        lines = {
            image_id: ["- " + " ".join(text.split()) for text in captions.references[image_id]]
            for image_id in captions.ids
        }
        verdicts, settings = self.ask(captions, lines)
        scores, reasons = zip(*(verdict or (None, None) for verdict in verdicts))
        return Scores.from_means(
            {"CLAIR": scores}, settings=settings, details={"clair_reason": reasons}
        )

    def read(self, reply: Any, count: int) -> tuple[float, Any]:
        """Return the score, and the reason of any JSON type; None without a reason."""
        score = float(str(reply["score"]))
        if not 0 <= score <= 100:
            raise ValueError
        return score, reply.get("reason")
