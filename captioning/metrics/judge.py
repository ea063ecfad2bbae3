"""Asks a language model on a server about each caption, and keeps its replies."""

import json
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Optional

from captioning.data.annotations import ImageId
from captioning.files.cache import cache_folder, cache_key
from captioning.files.chat import ChatServer
from captioning.files.reading import read_json
from captioning.files.stores import require_writable
from captioning.files.writing import write_json
from captioning.metrics.base import CaptionSet, Evaluator, option
from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.runtime.progress import progress

KEY_VARIABLE = "JUDGE_API_KEY"  # the environment variable with the server's key
MAX_TRIES = 3  # attempts to get a valid reply, as in CLAIR's code
CONCURRENCY = 8  # questions at a time
MAX_CHARACTERS = 20_000  # of a reply; the rest is not parsed


class Judge(Evaluator):
    """The base class of evaluators that ask a language model about each caption.

    The model is asked at temperature 0. Replies are cached by model and question. After an error no
    more questions are asked; a later call asks only the questions whose replies are not cached.

    - name: the prefix of recorded settings
    - question: the text with the fields {caption} and {lines}
    """

    name: str
    question: str
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
        self.cache = cache_folder(self.settings.cache_dir) / "judge"
        require_writable(str(self.cache))  # a reply that cannot be kept would be paid for again

    def check_requirements(self) -> None:
        self.server.check_access()

    @abstractmethod
    def read(self, reply: Any, count: int) -> Any:
        """Return the verdict in a JSON object of a reply, or raise one of several errors.

        count: the number of lines in the question. The errors are ValueError, LookupError,
        TypeError and AttributeError.
        """

    def ask(
        self, captions: CaptionSet, lines: Mapping[ImageId, Sequence[str]]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return a verdict per caption, None without a valid reply, and settings to record.

        lines: {image id: lines of the question}, in the order of the captions. Raises UserError,
        and Stopped when this process is asked to stop.
        """
        prompts = {}  # {image id: question}
        counts = {}  # {question: number of lines}
        for (image_id, text), group in zip(captions.predictions.items(), lines.values()):
            caption = " ".join(text.split())
            prompts[image_id] = self.question.format(caption=caption, lines="\n".join(group))
            counts[prompts[image_id]] = len(group)
        verdict_of = {}
        with ThreadPoolExecutor(CONCURRENCY) as pool, progress(len(counts), "judge", "it") as bar:
            verdicts = pool.map(self._verdict, counts, counts.values())  # ends at the first error
            for prompt, verdict in zip(counts, verdicts):
                verdict_of[prompt] = verdict
                bar.update()
        verdicts = [verdict_of[prompt] for prompt in prompts.values()]
        settings = {
            f"{self.name}_judge": f"{self.config.judge_model} of {self.server.url}",
            f"{self.name}_question": self.question,
            f"{self.name}_unread": verdicts.count(None),
        }
        return verdicts, settings

    def _verdict(self, question: str, count: int) -> Any:
        """Return the verdict on a question, cached if possible.

        After an invalid reply the question is asked again, up to MAX_TRIES times in all; None if no
        reply is valid.
        """
        signals.raise_if_requested()
        model = self.config.judge_model
        path = self.cache / f"{cache_key(json.dumps([model, question]))}.json"
        with suppress(UserError, LookupError, TypeError):  # there is no such file, or it is damaged
            if verdict := self._parse(str(read_json(path)["reply"]), count):
                return verdict
        messages = [{"role": "user", "content": question}]
        for _ in range(MAX_TRIES):
            reply = self.server.ask({"model": model, "messages": messages, "temperature": 0})[0]
            if verdict := self._parse(reply.text, count):
                write_json({"model": model, "question": question, "reply": reply.text}, path)
                return verdict
        return None

    def _parse(self, text: str, count: int) -> Any:
        """Return the verdict in the first JSON object of a text that `read` accepts, or None."""
        decoder, text = json.JSONDecoder(), text[:MAX_CHARACTERS]
        for brace in re.finditer("{", text):
            with suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
                return self.read(decoder.raw_decode(text, brace.start())[0], count)
        return None
