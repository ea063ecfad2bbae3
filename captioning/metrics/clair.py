"""CLAIR: a language model judges captions (Chan et al. 2023, arXiv 2310.12971).

The question is a paraphrase of the paper's. A reply counts if it contains the requested JSON
object. Otherwise the caption has no score. The paper's code then takes the first number, or 0.
"""

import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Event, Lock
from typing import Annotated, Any, NamedTuple, Optional

from pydantic import Field

from captioning.files.cache import cache_folder, cache_key
from captioning.files.chat import ChatServer
from captioning.files.reading import read_json
from captioning.files.writing import write_json
from captioning.metrics.evaluator import CaptionSet, Evaluator, Scores
from captioning.metrics.options import Options
from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line, progress

QUESTION = """\
Two sets of captions follow. Decide whether both are about one and the same image.
Candidate captions:
{candidates}
Reference captions:
{references}
On a scale from 0 to 100, how likely is it that the candidate captions describe the image which \
the reference captions describe? Answer with a JSON object and nothing else. Its key "score" holds \
a number from 0 to 100, and its key "reason" holds a string."""

KEY = "JUDGE_API_KEY"  # the environment variable with the server's key
TRIES = 3  # attempts to get a valid reply, as in the paper's code
AT_ONCE = 8  # concurrent questions
LONGEST = 20_000  # characters of a reply that are parsed


class Verdict(NamedTuple):
    score: float  # 0 to 100
    reason: Any  # as in the reply; None without a reason


def question(candidate: str, references: Sequence[str]) -> str:
    """The question about a caption. Each caption is on its own line."""

    def listed(texts):
        return "\n".join("- " + " ".join(text.split()) for text in texts)

    return QUESTION.format(candidates=listed([candidate]), references=listed(references))


def read_reply(reply: str) -> Optional[Verdict]:
    """Return the verdict from the first JSON object with a score. Text around it is ignored."""
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


class ClairOptions(Options):
    judge_url: Annotated[Optional[str], "scoring"] = Field(
        None,
        description="a server with OpenAI's chat interface, such as https://api.openai.com/v1",
    )
    judge_model: Annotated[Optional[str], "scoring"] = Field(
        None, description="the name of a model at judge_url"
    )


class Clair(Evaluator):
    """CLAIR: the mean score over captions with a score. Captions without one are counted.

    The model is asked at temperature 0. Replies are cached by model and question. After an error no
    more questions are asked; a later call asks only the missing ones. A caption's `clair_reason` is
    the model's reason.
    """

    name = "clair"
    Options = ClairOptions
    required = ("judge_url", "judge_model")
    costly = True

    def prepare(self) -> None:
        self.server = ChatServer(self.options.judge_url, "judge_url", KEY)
        self.cache = cache_folder(self.settings.cache_dir) / "judge"
        self.unwarned = Lock()  # held once a failed write is logged: other threads fail, too

    def check(self) -> None:
        self.server.check()

    def evaluate(self, captions: CaptionSet) -> Scores:
        asked = [question(text, captions.references[i]) for i, text in captions.predictions.items()]
        found = self._verdicts(list(dict.fromkeys(asked)))
        verdicts = [found[each] for each in asked]
        scores = [verdict.score if verdict else None for verdict in verdicts]
        return Scores.of_means(
            {"CLAIR": scores},
            settings={
                "clair_judge": f"{self.options.judge_model} of {self.server.url}",
                "clair_question": QUESTION,
                "clair_unread": scores.count(None),
            },
            details={"clair_reason": [verdict.reason if verdict else None for verdict in verdicts]},
        )

    def _verdicts(self, questions: list[str]) -> dict[str, Optional[Verdict]]:
        """The verdict on each question; None without a valid reply."""
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
        model = self.options.judge_model
        path = self.cache / f"{cache_key(json.dumps([model, each]))}.json"
        try:
            verdict = read_reply(str(read_json(path)["reply"]))
        except (UserError, LookupError, TypeError):  # there is no such file, or it is damaged
            verdict = None
        messages = [{"role": "user", "content": each}]
        for _ in range(TRIES):
            if verdict or given_up.is_set():
                break
            body = {"model": model, "messages": messages, "temperature": 0}
            reply = self.server.ask(body, given_up)[0] or ""
            verdict = read_reply(reply)
            if verdict:
                try:
                    write_json({"model": model, "question": each, "reply": reply}, path)
                except UserError as error:
                    if self.unwarned.acquire(blocking=False):
                        log_line(f"replies are not kept: {error}")
        return verdict
