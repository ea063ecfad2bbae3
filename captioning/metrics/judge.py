"""A language model elsewhere that answers questions: any server with OpenAI's chat interface."""

import hashlib
import http.client
import json
import os
import time
import urllib.error
import urllib.request
from pathlib import Path
from threading import Event, Lock
from typing import Any, Optional
from urllib.parse import urlsplit

from captioning.files.reading import read_json
from captioning.files.writing import write_json
from captioning.runtime.errors import UserError, one_line
from captioning.runtime.progress import say

KEY = "JUDGE_API_KEY"  # of the environment
TIMEOUT_S = 60  # without a byte
ANSWER_S = 300  # until the last byte
WAITS_S = (1, 2, 4, 8)  # between the tries of one question
LONGEST_WAIT_S = 60  # that a server may ask for
LARGEST = 1 << 20  # bytes of an answer
PASSING = {408, 409, 425, 429, 500, 502, 503, 504, 529}  # what a server says that may work later

_HERE = {"localhost", "127.0.0.1", "::1"}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The key is for one server."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        return None


class _PassingError(Exception):
    """What another try may mend. wait: the seconds that the server asks for."""

    def __init__(self, reason: str, wait: float = 0.0):
        super().__init__(reason)
        self.wait = wait


class Judge:
    """The model of that name at `url`, such as https://api.openai.com/v1, asked at temperature 0.

    What it replied is kept in `cache` under the model and the question. The key, if the server
    wants one, is JUDGE_API_KEY in the environment, and is written nowhere. Making one raises
    UserError for an address that cannot be used.
    """

    def __init__(self, url: Optional[str], model: Optional[str], cache: Path):
        if not url or not model:
            raise UserError(
                "metrics: clair needs judge_url and judge_model: a server with OpenAI's chat "
                "interface, such as https://api.openai.com/v1, and the name of a model there"
            )
        try:
            parts = urlsplit(url)
            known = parts.scheme in ("http", "https") and parts.hostname
            secret = parts.username or parts.password or parts.query or parts.fragment
            _ = parts.port
        except ValueError:
            known = secret = None
        if not known or any(character <= " " for character in url):
            raise UserError(f"judge_url: {url} is no address: expected https://host/v1")
        if secret:
            raise UserError(f"judge_url: give the address alone, and a key in {KEY}")
        self.key = os.environ.get(KEY, "").strip()
        if not self.key.isascii() or not self.key.isprintable():
            raise UserError(f"{KEY} in the environment holds what no key has: set it again")
        if self.key and parts.scheme == "http" and parts.hostname not in _HERE:
            raise UserError(f"judge_url: {KEY} is set, and is sent over https:// alone")
        self.url, self.name, self.cache = url.rstrip("/"), model, cache
        self.opener = urllib.request.build_opener(_NoRedirects)
        self.told, self.telling = False, Lock()

    def check(self) -> None:
        """Raise UserError where nobody answers at the address, or the key is refused."""
        try:
            self._fetch("/models")
        except _PassingError as error:
            raise UserError(f"{self.url}: {error}") from None
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise self._refused(error) from None

    def known(self, question: str) -> Optional[str]:
        """Return what was replied to the question before, None if it was not asked."""
        try:
            kept = read_json(self._kept(question))
        except UserError:
            return None
        asked = isinstance(kept, dict) and (kept.get("model"), kept.get("question"))
        reply = kept.get("reply") if asked == (self.name, question) else None
        return reply if isinstance(reply, str) else None

    def keep(self, question: str, reply: str) -> None:
        """Keep a reply; a folder that cannot be written to is said, once, and no error."""
        content = {"model": self.name, "question": question, "reply": reply}
        try:
            write_json(content, self._kept(question))
        except UserError as error:
            with self.telling:  # several threads ask
                if not self.told:
                    say(f"replies are not kept: {error}")
                self.told = True

    def ask(self, question: str, given_up: Event) -> str:
        """Return the model's reply, asked for anew, however often the server has to be asked.

        given_up: set where nobody waits for the reply any more. Raises UserError.
        """
        body = {
            "model": self.name,
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
        }
        for wait in (*WAITS_S, None):
            try:
                return self._reply(self._fetch("/chat/completions", body))
            except urllib.error.HTTPError as error:
                raise self._refused(error) from None
            except _PassingError as error:
                if wait is None or given_up.wait(min(max(wait, error.wait), LONGEST_WAIT_S)):
                    tries = len(WAITS_S) + 1
                    raise UserError(f"{self.url}: {error}, after {tries} tries") from None
        raise AssertionError("the last try returns or raises")

    def _kept(self, question: str) -> Path:
        name = hashlib.sha256(json.dumps([self.name, question]).encode()).hexdigest()
        return self.cache / f"{name}.json"

    def _fetch(self, path: str, body: Optional[dict[str, Any]] = None) -> bytes:
        """What the server answers. Raises _PassingError, and HTTPError for any other refusal."""
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        end = time.monotonic() + ANSWER_S
        try:
            with self.opener.open(request, timeout=TIMEOUT_S) as response:
                answer = b""
                while piece := response.read1(1 << 16):
                    answer += piece
                    if len(answer) > LARGEST or time.monotonic() > end:
                        raise _PassingError("the answer does not end")
                return answer
        except urllib.error.HTTPError as error:
            if error.code not in PASSING:
                raise
            wait = error.headers.get("Retry-After") or ""
            reason = f"{error.code} {one_line(error.reason)}"
            raise _PassingError(reason, float(wait) if wait.isdigit() else 0.0) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _PassingError(one_line(getattr(error, "reason", error))) from None

    def _reply(self, answer: bytes) -> str:
        try:
            reply = json.loads(answer)["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError):
            reply = None
        if not isinstance(reply, str):
            raise _PassingError("the answer is not of OpenAI's chat interface")
        return reply

    def _refused(self, error: urllib.error.HTTPError) -> UserError:
        try:
            said = error.read(LARGEST).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException):
            said = ""
        said = said.replace(self.key, "(the key)") if self.key else said
        hint = f" (is {KEY} right?)" if error.code in (401, 403) else ""
        return UserError(f"{self.url}: {error.code} {one_line(said or error.reason)}{hint}")
