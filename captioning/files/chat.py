"""A server with OpenAI's chat interface, asked again where that may help."""

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime
from threading import Event
from typing import Any, Optional
from urllib.parse import urlsplit

from captioning.runtime.errors import UserError, one_line

TIMEOUT_S = 60  # without a byte
ANSWER_S = 300  # until the last byte
WAITS_S = (1, 2, 4, 8)  # between the tries of one question
LONGEST_WAIT_S = 60  # that a server may ask for
LARGEST = 4 << 20  # bytes of an answer
PASSING = {408, 409, 425, 429, 500, 502, 503, 504, 529}  # what a server says that may work later

_HERE = {"localhost", "127.0.0.1", "::1"}


class NoAnswer(UserError):
    """What a server never gave to one question. code: of its refusal; None where it lasted."""

    def __init__(self, reason: str, code: Optional[int] = None):
        super().__init__(reason)
        self.code = code


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The key is for one server."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        return None


class _PassingError(Exception):
    """What another try may mend. wait: seconds that the server asks for; None of a silent one."""

    def __init__(self, reason: str, wait: Optional[float] = None):
        super().__init__(reason)
        self.wait = wait


class ChatServer:
    """The server at `url`, such as https://api.openai.com/v1.

    The key, if it wants one, is in the environment under the name `key`, and is written nowhere.
    setting: what the url was given as. timeout: seconds without a byte; None is TIMEOUT_S.
    Making one raises UserError for an address that cannot be used.
    """

    def __init__(self, url: str, setting: str, key: str, timeout: Optional[float] = None):
        try:
            parts = urlsplit(url)
            known = parts.scheme in ("http", "https") and parts.hostname
            secret = parts.username or parts.password or parts.query or parts.fragment
            _ = parts.port
        except ValueError:
            known, secret = None, "@" in url or "?" in url
        if secret:
            raise UserError(f"{setting}: give the address alone, and a key in {key}")
        if not known and ("@" in url or "?" in url):
            raise UserError(f"{setting} is no address: expected https://host/v1")
        if not known or any(character <= " " for character in url):
            raise UserError(f"{setting}: {url} is no address: expected https://host/v1")
        self.key_name, self.key = key, os.environ.get(key, "").strip()
        if not self.key.isascii() or not self.key.isprintable():
            raise UserError(f"{key} in the environment holds what no key has: set it again")
        if self.key and parts.scheme == "http" and parts.hostname not in _HERE:
            raise UserError(f"{setting}: {key} is set, and is sent over https:// alone")
        self.url, self.timeout = url.rstrip("/"), timeout
        self.opener = urllib.request.build_opener(_NoRedirects)

    def check(self) -> list[str]:
        """The models that the server says it has, if it says so.

        Raises UserError where nobody answers, or the key is refused.
        """
        try:
            told = json.loads(self._fetch("/models"))
            return [str(model["id"]) for model in told["data"]]
        except _PassingError as error:
            if error.wait is None:
                raise UserError(f"{self.url}: {error}") from None
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise self._refused(error) from None
        except (ValueError, LookupError, TypeError, RecursionError):
            pass
        return []

    def ask(self, body: dict[str, Any], given_up: Event) -> list[Optional[str]]:
        """The contents of an answer's choices, however often the server has to be asked.

        given_up: set where nobody waits for the answer any more. Raises NoAnswer.
        """
        for wait in (*WAITS_S, None):
            try:
                return _contents(self._fetch("/chat/completions", body))
            except urllib.error.HTTPError as error:
                raise self._refused(error) from None
            except _PassingError as error:
                asked_for = min(error.wait or 0.0, LONGEST_WAIT_S)
                if wait is None or given_up.wait(max(wait, asked_for)):
                    tries = len(WAITS_S) + 1
                    raise NoAnswer(f"{self.url}: {error}, after {tries} tries") from None
        raise AssertionError("the last try returns or raises")

    def _fetch(self, path: str, body: Optional[dict[str, Any]] = None) -> bytes:
        """What the server answers. Raises _PassingError, and HTTPError for any other refusal."""
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        timeout = TIMEOUT_S if self.timeout is None else self.timeout
        end = time.monotonic() + max(ANSWER_S, timeout)
        try:
            with self.opener.open(request, timeout=timeout) as response:
                answer = b""
                while piece := response.read1(1 << 16):
                    answer += piece
                    if len(answer) > LARGEST or time.monotonic() > end:
                        raise _PassingError("the answer does not end")
                return answer
        except urllib.error.HTTPError as error:
            if error.code not in PASSING:
                raise
            wait = _seconds(error.headers.get("Retry-After") or "")
            raise _PassingError(f"{error.code} {one_line(error.reason)}", wait) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _PassingError(one_line(getattr(error, "reason", error))) from None

    def _refused(self, error: urllib.error.HTTPError) -> NoAnswer:
        try:
            said = error.read(LARGEST).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException):
            said = ""
        said = said.replace(self.key, "(the key)") if self.key else said
        hint = f" (is {self.key_name} right?)" if error.code in (401, 403) else ""
        told = f"{self.url}: {error.code} {one_line(said or error.reason)}{hint}"
        return NoAnswer(told, error.code)


def _seconds(wait: str) -> float:
    """What a Retry-After asks for, a number or a date (RFC 9110, 10.2.3); 0 of any other."""
    if wait.isascii() and wait.isdigit():
        return float(wait)
    try:
        return max(0.0, parsedate_to_datetime(wait).timestamp() - time.time())
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0.0


def _contents(answer: bytes) -> list[Optional[str]]:
    """Of each choice the content, None where there is none. Raises _PassingError."""
    try:
        found = [choice["message"]["content"] for choice in json.loads(answer)["choices"]]
    except (ValueError, LookupError, TypeError, RecursionError):
        found = []
    if not found or not all(content is None or isinstance(content, str) for content in found):
        raise _PassingError("the answer is not of OpenAI's chat interface", 0.0)
    return found
