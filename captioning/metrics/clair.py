"""Computes CLAIR: a language model judges captions (Chan et al. 2023, arXiv 2310.12971).

The question is not worded as in the paper, so that scores differ from the paper's scores. If the
reply lacks the requested JSON object, the caption has no score; the paper's code would take the
first number in the reply, or 0.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from captioning.metrics.evaluator import CaptionSet, Scores
from captioning.metrics.judge import JudgeEvaluator, first_object

QUESTION = """\
Two sets of captions follow. Decide whether both are about one and the same image.
Candidate captions:
{candidates}
Reference captions:
{references}
On a scale from 0 to 100, how likely is it that the candidate captions describe the image which \
the reference captions describe? Answer with a JSON object and nothing else. Its key "score" holds \
a number from 0 to 100, and its key "reason" holds a string."""


class Verdict(NamedTuple):
    """A score from 0 to 100, and the reason for it, of any JSON type. None if it is not given."""

    score: Optional[float]
    reason: Any


def judge_prompt(candidate: str, references: Sequence[str]) -> str:
    """Return the question about a caption. Each caption is on its own line."""

    def listed(texts):
        return "\n".join("- " + " ".join(text.split()) for text in texts)

    return QUESTION.format(candidates=listed([candidate]), references=listed(references))


def read_reply(reply: str) -> Optional[Verdict]:
    """Return the verdict in the first JSON object with a valid score; None if there is none."""

    def read_verdict(found):
        score = math.nan if isinstance(found["score"], bool) else float(found["score"])
        if not 0 <= score <= 100:
            raise ValueError
        return Verdict(score, found.get("reason"))

    return first_object(reply, read_verdict)


class Clair(JudgeEvaluator):
    """CLAIR: the mean score over the captions that have a score.

    The setting `clair_unread` is the number of captions without a score. The detail `clair_reason`
    is the reason that the language model gives for each score.
    """

    name = "clair"

    def evaluate(self, captions: CaptionSet) -> Scores:
        prompts = [
            judge_prompt(text, captions.references[i]) for i, text in captions.predictions.items()
        ]
        found = self.verdicts(dict.fromkeys(prompts, read_reply))
        verdicts = [found[prompt] or Verdict(None, None) for prompt in prompts]
        scores = [verdict.score for verdict in verdicts]
        return Scores.from_means(
            {"CLAIR": scores},
            settings={
                "clair_judge": self.judge,
                "clair_question": QUESTION,
                "clair_unread": scores.count(None),
            },
            details={"clair_reason": [verdict.reason for verdict in verdicts]},
        )
