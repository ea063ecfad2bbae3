"""CLAIR: what a language model thinks of captions (Chan et al. 2023, arXiv 2310.12971).

The question asks what the paper's does, in words of its own; a reply counts where it holds the JSON
object that is asked for. The paper's code takes a reply's first number instead, and 0 without one.
"""

import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Event
from typing import Any, NamedTuple, Optional

from captioning.files.cache import cache_folder
from captioning.metrics.bootstrap import ratio
from captioning.metrics.evaluator import CaptionSet, Evaluator, Result, Settings
from captioning.metrics.judge import Judge
from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.runtime.progress import progress

QUESTION = """\
Two sets of captions follow. Decide whether both are about one and the same image.
Candidate captions:
{candidates}
Reference captions:
{references}
On a scale from 0 to 100, how likely is it that the candidate captions describe the image which \
the reference captions describe? Answer with a JSON object and nothing else. Its key "score" holds \
a number from 0 to 100, and its key "reason" holds a string."""

TRIES = 3  # to get a reply that can be read, as in the paper's code
AT_ONCE = 8  # questions
LONGEST = 20_000  # characters of a reply that are read


class Verdict(NamedTuple):
    score: float  # 0 to 100
    reason: Any  # as the model put it, None without one


def question(candidate: str, references: Sequence[str]) -> str:
    """The question about a caption; each is one line of it."""

    def listed(texts):
        return "\n".join("- " + " ".join(text.split()) for text in texts)

    return QUESTION.format(candidates=listed([candidate]), references=listed(references))


def read_reply(reply: str) -> Optional[Verdict]:
    """Return the verdict of the first JSON object that has one, whatever stands around it."""
    decoder, reply = json.JSONDecoder(), reply[:LONGEST]
    start = reply.find("{")
    while start >= 0:
        try:
            found = decoder.raw_decode(reply, start)[0]
            score = math.nan if isinstance(found["score"], bool) else float(found["score"])
            if 0 <= score <= 100:
                return Verdict(score, found.get("reason"))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            pass
        start = reply.find("{", start + 1)
    return None


class Clair(Evaluator):
    """CLAIR: the mean score of the captions that have one; the others are counted.

    Each caption's reason is told beside its score. An error ends the questions; the replies are
    kept, so that a later call asks the others alone.
    """

    names = reference_metrics = ("CLAIR",)
    costly = True

    def __init__(self, settings: Settings):
        super().__init__(settings)
        cache = cache_folder(settings.cache_dir) / "judge"
        self.judge = Judge(settings.judge_url, settings.judge_model, cache)

    def unavailable(self) -> dict[str, str]:
        try:
            self.judge.check()
        except UserError as error:
            return dict.fromkeys(self.names, str(error))
        return {}

    def evaluate(self, captions: CaptionSet) -> Result:
        asked = [question(text, captions.references[i]) for i, text in captions.predictions.items()]
        found = self._verdicts(list(dict.fromkeys(asked)))
        verdicts = [found[each] for each in asked]
        scores = [verdict.score if verdict else None for verdict in verdicts]
        return Result(
            {"CLAIR": ratio([score or 0 for score in scores], [s is not None for s in scores])},
            {"CLAIR": scores},
            {
                "clair_judge": f"{self.judge.name} of {self.judge.url}",
                "clair_question": QUESTION,
                "clair_unread": scores.count(None),
            },
            details={"clair_reason": [verdict.reason if verdict else None for verdict in verdicts]},
        )

    def _verdicts(self, questions: list[str]) -> dict[str, Optional[Verdict]]:
        """The verdict on each question, None where no reply could be read."""
        given_up = Event()
        found = {}
        with progress(len(questions), "judge", "caption") as bar, ThreadPoolExecutor(AT_ONCE) as do:
            waiting = {do.submit(self._verdict, each, given_up): each for each in questions}
            try:
                for done in as_completed(waiting):
                    found[waiting[done]] = done.result()
                    bar.update()
                    if signals.stop_requested():
                        raise UserError("asked to stop")
            finally:
                given_up.set()
                do.shutdown(wait=False, cancel_futures=True)
        return found

    def _verdict(self, each: str, given_up: Event) -> Optional[Verdict]:
        kept = self.judge.known(each)
        verdict = read_reply(kept) if kept is not None else None
        for _ in range(TRIES):
            if verdict or given_up.is_set():
                break
            reply = self.judge.ask(each, given_up)
            verdict = read_reply(reply)
            if verdict:
                self.judge.keep(each, reply)
        return verdict
