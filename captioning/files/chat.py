"""Sends requests to servers with OpenAI's chat interface, and retries temporary failures.

OpenAI's own client is not used, because its pauses between retries cannot be interrupted, and
because it limits neither the size nor the total time of an answer.
"""

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from threading import Event
from typing import Any, Optional
from urllib.parse import urlsplit

from captioning.runtime.errors import UserError, one_line

TIMEOUT_S = 60  # the longest wait for the next byte
ANSWER_S = 300  # the longest wait for the last byte of an answer
WAITS_S = (1, 2, 4, 8)  # pauses between the tries of a request
MAX_WAIT_S = 60  # a longer pause that a server asks for is shortened to this
MAX_ANSWER_BYTES = 4 << 20
TEMPORARY = {408, 409, 425, 429, 500, 502, 503, 504, 529}  # status codes that are retried

_LOCAL = {"localhost", "127.0.0.1", "::1"}


class NoAnswer(UserError):
    """A request failed. code: the HTTP status if the server refused the request.

    code is None if the last try failed temporarily.
    """

    def __init__(self, reason: str, code: Optional[int] = None):
        super().__init__(reason)
        self.code = code


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, so that the key is sent to no other server."""

    def redirect_request(self, *request):
        return None


class _TemporaryError(Exception):
    """A failure that is retried.

    wait: the pause in seconds that the server asks for; 0 if it asks for no pause; None if the
    server did not answer, or the answer was too long or too slow.
    """

    def __init__(self, reason: str, wait: Optional[float] = None):
        super().__init__(reason)
        self.wait = wait


class ChatServer:
    """The server at `url`, such as https://api.openai.com/v1.

    key: the environment variable with the server's key, if it needs one; the key is never logged.
    setting: the name of the option that contains `url`, for errors. timeout: the longest wait for
    the next byte, in seconds. The constructor raises UserError for an address that cannot be used.
    """

    def __init__(self, url: str, setting: str, key: str, timeout: float = TIMEOUT_S):
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and parts.hostname and min(url) > " "
            _ = parts.port  # raises ValueError
            secret = parts.username or parts.password or parts.query or parts.fragment
        except ValueError:
            usable, secret = None, None
        if secret:
            raise UserError(f"{setting}: give only the address, and the key in {key}")
        if not usable:
            shown = " is" if "@" in url or "?" in url else f": {url} is"  # may hold a secret
            raise UserError(f"{setting}{shown} no address: expected https://host/v1")
        self.key_name, self.key = key, os.environ.get(key, "").strip()
        if not self.key.isascii() or not self.key.isprintable():
            raise UserError(
                f"{key} in the environment has characters that are not allowed: set it again"
            )
        if self.key and parts.scheme == "http" and parts.hostname not in _LOCAL:
            raise UserError(f"{setting}: {key} is set, and a key is sent only over https://")
        self.url, self.timeout = url.rstrip("/"), timeout
        self.opener = urllib.request.build_opener(_NoRedirects)

    def list_models(self) -> list[str]:
        """Return the names of the server's models; [] if the server does not list them.

        Raises UserError if the server does not answer, or refuses the key.
        """
        try:
            return [str(model["id"]) for model in json.loads(self._fetch("/models"))["data"]]
        except _TemporaryError as error:
            if error.wait is None:
                raise UserError(f"{self.url}: {error}") from None
        except NoAnswer as error:
            if error.code in (401, 403):
                raise
        except (ValueError, LookupError, TypeError, RecursionError):
            pass
        return []

    def ask(self, body: dict[str, Any], given_up: Event) -> list[Optional[str]]:
        """Return the content of each choice in the server's answer, after retries if necessary.

        body: the request, see OpenAI's chat completions. given_up: an event that the caller sets
        when it no longer needs the answer. Raises NoAnswer.
        """
        for pause in (*WAITS_S, None):
            try:
                return _contents(self._fetch("/chat/completions", body))
            except _TemporaryError as error:
                asked_for = min(error.wait or 0.0, MAX_WAIT_S)
                if pause is None or given_up.wait(max(pause, asked_for)):
                    tries = len(WAITS_S) + 1
                    raise NoAnswer(f"{self.url}: {error}, after {tries} tries") from None
        raise AssertionError("the last try returns or raises")

    def _fetch(self, path: str, body: Optional[dict[str, Any]] = None) -> bytes:
        """Return the answer's body. Raises _TemporaryError, or NoAnswer for a final refusal."""
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        end = time.monotonic() + max(ANSWER_S, self.timeout)
        try:
            with self.opener.open(request, timeout=self.timeout) as response:
                answer = b""
                while piece := response.read1(1 << 16):
                    answer += piece
                    if len(answer) > MAX_ANSWER_BYTES or time.monotonic() > end:
                        raise _TemporaryError("the answer is too long or too slow")
                return answer
        except urllib.error.HTTPError as error:
            if error.code not in TEMPORARY:
                raise self._refused(error) from None
            wait = error.headers.get("Retry-After", "")
            seconds = float(wait) if wait.isdecimal() else 0.0
            raise _TemporaryError(f"{error.code} {one_line(error.reason)}", seconds) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _TemporaryError(one_line(getattr(error, "reason", error))) from None

    def _refused(self, error: urllib.error.HTTPError) -> NoAnswer:
        try:
            text = error.read(MAX_ANSWER_BYTES).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException):
            text = ""
        text = text.replace(self.key, "(the key)") if self.key else text
        hint = f" (is {self.key_name} right?)" if error.code in (401, 403) else ""
        reason = f"{self.url}: {error.code} {one_line(text or error.reason)}{hint}"
        return NoAnswer(reason, error.code)


def _contents(answer: bytes) -> list[Optional[str]]:
    """Return each choice's content; None for a choice without one. Raises _TemporaryError."""
    try:
        found = [choice["message"]["content"] for choice in json.loads(answer)["choices"]]
    except (ValueError, LookupError, TypeError, RecursionError):
        found = []
    if not found or not all(content is None or isinstance(content, str) for content in found):
        raise _TemporaryError("the answer does not follow OpenAI's chat interface", 0.0)
    return found
