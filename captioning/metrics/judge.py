"""Asks a language model on a server to judge captions, and caches the replies."""

import json
import re
from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from threading import Lock
from typing import Annotated, Any, Callable, Optional

from pydantic import Field

from captioning.files.cache import cache_folder, cache_key
from captioning.files.chat import STOP_CHECK_S, ChatServer, without_thoughts
from captioning.files.reading import read_json
from captioning.files.writing import write_json
from captioning.metrics.evaluator import Evaluator
from captioning.metrics.options import Options
from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line, progress

KEY_VARIABLE = "JUDGE_API_KEY"  # the environment variable with the server's key
MAX_TRIES = 3  # attempts to get a valid reply, as in CLAIR's code
CONCURRENCY = 8  # questions at a time
MAX_CHARACTERS = 20_000  # of a reply; the rest is not parsed


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


class JudgeOptions(Options):
    judge_url: Annotated[Optional[str], "scoring"] = Field(
        None,
        description="a server with OpenAI's chat interface, such as https://api.openai.com/v1",
    )
    judge_model: Annotated[Optional[str], "scoring"] = Field(
        None, description="the name of a model at judge_url"
    )


class JudgeEvaluator(Evaluator):
    """The base class of evaluators that ask a language model about each caption.

    The model is asked at temperature 0. Replies are cached by model and question. After an error no
    more questions are asked; a later call asks only the questions whose replies are not cached.
    """

    Options = JudgeOptions
    required = ("judge_url", "judge_model")
    costly = True

    def prepare(self) -> None:
        self.server = ChatServer(self.options.judge_url, "judge_url", KEY_VARIABLE)
        self.cache = cache_folder(self.settings.cache_dir) / "judge"
        # The thread that logs the first failed write to the cache acquires this lock for good, so
        # that no later failure is logged.
        self.unwarned = Lock()

    def check_requirements(self) -> None:
        self.server.list_models()

    @property
    def judge(self) -> str:
        """The name of the model and the server, recorded with the scores."""
        return f"{self.options.judge_model} of {self.server.url}"

    def verdicts(self, readers: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
        """Return {question: what its reader returns for the reply, or None}.

        readers: {question: function that reads the reply}. A reader returns None for an invalid
        reply. The question is then asked again, up to MAX_TRIES times in all; the result is None if
        no reply is valid. Raises UserError.
        """
        pool, verdicts = ThreadPoolExecutor(CONCURRENCY), {}
        questions = {
            pool.submit(self._verdict, question, read): question
            for question, read in readers.items()
        }
        waiting = set(questions)
        try:
            with progress(len(questions), "judge", "caption") as bar:
                while waiting:
                    answered, waiting = wait(waiting, STOP_CHECK_S, FIRST_EXCEPTION)
                    if signals.stop_requested():
                        raise UserError("asked to stop")
                    for future in answered:
                        verdicts[questions[future]] = future.result()
                    bar.update(len(answered))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return verdicts

    def _verdict(self, question: str, read: Callable[[str], Any]) -> Any:
        """Return the verdict on a question, cached if possible; None without a valid reply."""
        model = self.options.judge_model
        path = self.cache / f"{cache_key(json.dumps([model, question]))}.json"
        try:
            verdict = read(without_thoughts(str(read_json(path)["reply"])))
        except (UserError, LookupError, TypeError):  # there is no such file, or it is damaged
            verdict = None
        messages = [{"role": "user", "content": question}]
        for _ in range(MAX_TRIES):
            if verdict:
                break
            body = {"model": model, "messages": messages, "temperature": 0}
            reply = self.server.ask(body)[0].text
            verdict = read(reply)
            if verdict:
                try:
                    write_json({"model": model, "question": question, "reply": reply}, path)
                except UserError as error:
                    if self.unwarned.acquire(blocking=False):
                        log_line(f"replies are not kept: {error}")
        return verdict
