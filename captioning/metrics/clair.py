"""Computes CLAIR: a language model judges captions (Chan et al. 2023, arXiv 2310.12971).

The question is not worded as in the paper, so that scores differ from the paper's scores. If the
reply lacks the requested JSON object, the caption has no score; the paper's code would take the
first number in the reply, or 0.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from threading import Lock
from typing import Any, Callable, NamedTuple, Optional

from captioning.files.cache import cache_folder, cache_key
from captioning.files.chat import STOP_CHECK_S, ChatServer
from captioning.files.reading import read_json
from captioning.files.writing import write_json
from captioning.metrics.base import CaptionSet, Evaluator, Metric, Scores, option
from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line, progress
from decoding.thoughts import without_thoughts

KEY_VARIABLE = "JUDGE_API_KEY"  # the environment variable with the server's key
MAX_TRIES = 3  # attempts to get a valid reply, as in CLAIR's code
CONCURRENCY = 8  # questions at a time
MAX_CHARACTERS = 20_000  # of a reply; the rest is not parsed

QUESTION = """\
Two sets of captions follow. Decide whether both are about one and the same image.
Candidate captions:
{candidates}
Reference captions:
{references}
On a scale from 0 to 100, how likely is it that the candidate captions describe the image which \
the reference captions describe? Answer with a JSON object and nothing else. Its key "score" holds \
a number from 0 to 100, and its key "reason" holds a string."""


class Judge(Evaluator):
    """The base class of evaluators that ask a language model about each caption.

    The model is asked at temperature 0. Replies are cached by model and question. After an error no
    more questions are asked; a later call asks only the questions whose replies are not cached.
    """

    options = {
        "judge_url": option(
            Optional[str],
            None,
            "a server with OpenAI's chat interface, such as https://api.openai.com/v1",
        ),
        "judge_model": option(Optional[str], None, "the name of a model at judge_url"),
    }
    required = ("judge_url", "judge_model")
    costly = True

    def prepare(self) -> None:
        self.server = ChatServer(self.config.judge_url, "judge_url", KEY_VARIABLE)
        self.judge = f"{self.config.judge_model} of {self.server.url}"  # recorded with the scores
        self.cache = cache_folder(self.settings.cache_dir) / "judge"
        self.unwarned = Lock()  # held for good by the thread that logs the first failed write

    def check_requirements(self) -> None:
        self.server.list_models()

    def verdicts(self, readers: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
        """Return {question: what its reader returns for the reply, or None}.

        readers: {question: function that reads the reply}. A reader returns None for an invalid
        reply. The question is then asked again, up to MAX_TRIES times in all; the result is None if
        no reply is valid. Raises UserError, and Stopped when this process is asked to stop.
        """
        pool = ThreadPoolExecutor(CONCURRENCY)
        started = {pool.submit(self._verdict, *each): each[0] for each in readers.items()}
        waiting = set(started)
        try:
            with progress(len(started), "judge", "caption") as bar:
                while waiting:
                    answered, waiting = wait(waiting, STOP_CHECK_S, FIRST_EXCEPTION)
                    signals.raise_if_requested()
                    bar.update(len([future.result() for future in answered]))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return {question: future.result() for future, question in started.items()}

    def _verdict(self, question: str, read: Callable[[str], Any]) -> Any:
        """Return the verdict on a question, cached if possible; None without a valid reply."""
        model = self.config.judge_model
        path = self.cache / f"{cache_key(json.dumps([model, question]))}.json"
        with suppress(UserError, LookupError, TypeError):  # there is no such file, or it is damaged
            if verdict := read(without_thoughts(str(read_json(path)["reply"]))):
                return verdict
        messages = [{"role": "user", "content": question}]
        for _ in range(MAX_TRIES):
            reply = self.server.ask({"model": model, "messages": messages, "temperature": 0})[0]
            if verdict := read(reply.text):
                self._keep({"model": model, "question": question, "reply": reply.text}, path)
                return verdict
        return None

    def _keep(self, content, path):
        try:
            write_json(content, path)
        except UserError as error:
            if self.unwarned.acquire(blocking=False):
                log_line(f"replies are not kept: {error}")


def first_object(reply: str, read: Callable[[Any], Any]) -> Any:
    """Return `read(object)` for the first JSON object in a reply that `read` accepts, or None.

    read: raises ValueError, LookupError, TypeError or AttributeError to reject an object. Text
    around the object is ignored.
    """
    decoder, reply = json.JSONDecoder(), reply[:MAX_CHARACTERS]
    for brace in re.finditer("{", reply):
        with suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return read(decoder.raw_decode(reply, brace.start())[0])
    return None


class Verdict(NamedTuple):
    """A score from 0 to 100, and the reason for it, of any JSON type. None if it is not given."""

    score: Optional[float]
    reason: Any


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

    def evaluate(self, captions: CaptionSet) -> Scores:
        prompts = [
            judge_prompt(text, captions.references[i]) for i, text in captions.predictions.items()
        ]
        verdict_of = self.verdicts(dict.fromkeys(prompts, read_reply))
        verdicts = [verdict_of[prompt] or Verdict(None, None) for prompt in prompts]
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


def judge_prompt(candidate: str, references: Sequence[str]) -> str:
    """Return the question about a caption. Each caption is on its own line."""

    def listed(texts):
        return "\n".join("- " + " ".join(text.split()) for text in texts)

    return QUESTION.format(candidates=listed([candidate]), references=listed(references))


def read_reply(reply: str) -> Optional[Verdict]:
    """Return the verdict in the first JSON object with a valid score; None if there is none."""

    def read_verdict(reply):
        score = math.nan if isinstance(reply["score"], bool) else float(reply["score"])
        if not 0 <= score <= 100:
            raise ValueError
        return Verdict(score, reply.get("reason"))

    return first_object(reply, read_verdict)
