"""Sends requests to servers with OpenAI's chat interface, and repeats them after temporary errors.

OpenAI's own client is not used, because its pauses cannot be interrupted.
"""

import json
import os
import re
import ssl
import time
from contextlib import suppress
from typing import Any, Callable, NamedTuple, Optional

import httpx
import tenacity

from captioning.runtime import signals
from captioning.runtime.errors import UserError, one_line
from captioning.runtime.progress import log_once
from decoding.thoughts import without_thoughts

FIRST_PAUSE_S = 1  # before the second try; each further pause is twice as long
MAX_PAUSE_S = 60  # a longer pause that a server asks for is shortened to this
STOP_CHECK_S = 1  # between two checks of stop_requested
TIMEOUT_S = 300  # until the answer begins, and between its parts
CONNECT_S = 60
LOCAL = r"(localhost|127\.0\.0\.1|\[::1\])(:|$)"  # hosts that no proxy reaches


class RequestFailed(UserError):
    """A request has no usable answer.

    code: the HTTP status; None if the server did not answer.
    pause_s: the pause before the next try that the server asks for.
    """

    def __init__(self, reason: str, code: Optional[int] = None, pause_s: float = 0):
        super().__init__(reason)
        self.code, self.pause_s = code, pause_s
        self.is_temporary = code in (None, 200, 408, 409, 425, 429) or code >= 500


class Reply(NamedTuple):
    """One choice of an answer.

    - text: the content without thoughts
    - is_cut: whether the content ended at the limit of tokens
    """

    text: str
    is_cut: bool


def _pause_s(state: tenacity.RetryCallState) -> float:
    server_pause_s = state.outcome.exception().pause_s
    return max(FIRST_PAUSE_S * 2 ** (state.attempt_number - 1), min(server_pause_s, MAX_PAUSE_S))


def _sleep(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if signals.stop_requested():
            raise signals.Stopped
        time.sleep(min(seconds, STOP_CHECK_S))


def _fail(state: tenacity.RetryCallState) -> None:
    failure = state.outcome.exception()
    raise RequestFailed(f"{failure}, after {state.attempt_number} tries", failure.code)


class ChatServer:
    """The server at `url`, such as https://api.openai.com/v1. Redirects are not followed.

    - url: /v1 is appended to an address without a path
    - setting: the name of the option that contains `url`, for errors
    - key_variable: the environment variable with the server's key, if any; the key is never logged

    The constructor raises UserError for an address or a key that cannot be used.
    """

    def __init__(self, url: str, setting: str, key_variable: str):
        host = r"(?:[\w.-]+|\[[\w:.]+\])(?::\d+)?"
        parts = re.fullmatch(rf"((https?)://({host}))(/[^\s?#@]*|)", url, re.ASCII)
        if not parts:  # the address is not shown, because it may contain the key
            raise UserError(
                f"{setting} has to be an address such as https://host/v1, without a password or "
                f"key: put the key into the environment variable {key_variable}"
            )
        server, scheme, host, path = parts.groups()
        self.url, self.key_variable = server + (path.rstrip("/") or "/v1"), key_variable
        self.api_key = os.environ.get(key_variable, "").strip()
        if not (self.api_key.isascii() and self.api_key.isprintable()):
            raise UserError(f"{key_variable} in the environment has characters that no key has")
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
            if scheme == "http":
                log_once(
                    f"warning: {key_variable} is sent unencrypted, because {setting} is http://"
                )
        try:
            self.client = httpx.Client(
                headers=headers,
                timeout=httpx.Timeout(TIMEOUT_S, connect=CONNECT_S),
                limits=httpx.Limits(),  # the callers limit the number of requests at once
                verify=ssl.create_default_context(),  # the system's certificates
                trust_env=not re.match(LOCAL, host),  # the environment's proxies
            )
        except (httpx.InvalidURL, ValueError, ImportError) as error:
            raise UserError(f"a proxy variable in the environment: {one_line(error)}") from None

    def check_access(self) -> None:
        """Raise RequestFailed if the server does not answer, or refuses the key."""
        try:
            self._fetch("/models", list)
        except RequestFailed as error:
            if error.code in (None, 401, 403):
                raise

    @tenacity.retry(
        retry=tenacity.retry_if_exception(lambda error: getattr(error, "is_temporary", False)),
        stop=tenacity.stop_after_attempt(5),
        wait=_pause_s,
        sleep=_sleep,
        retry_error_callback=_fail,
    )
    def ask(self, body: dict[str, Any]) -> list[Reply]:
        """Return the choices in the server's answer, after retries if necessary.

        body: the request, see OpenAI's chat completions. Raises RequestFailed, and Stopped if a
        stop is requested during a pause.
        """
        return self._fetch("/chat/completions", _replies, json.dumps(body).encode())

    def _fetch(self, path: str, read: Callable[[Any], list], body: Optional[bytes] = None) -> list:
        """Return `read(answer)` of the server's JSON. Raises RequestFailed."""
        method = "POST" if body else "GET"
        try:
            response = self.client.request(method, self.url + path, content=body)
        except (httpx.RequestError, httpx.InvalidURL, UnicodeError) as error:
            raise RequestFailed(f"{self.url}: {one_line(error)}") from None
        code, text, hint = response.status_code, response.text, ""
        if response.is_success:
            with suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
                return read(json.loads(text))
            text = "the answer does not follow OpenAI's chat interface"
        elif code in (401, 403):
            hint = f" (is {self.key_variable} right?)"
        if self.api_key:
            text = text.replace(self.api_key, "(the key)")
        reason = f"{self.url}: {code} {one_line(text.strip() or response.reason_phrase)}{hint}"
        pause = response.headers.get("Retry-After", "")
        raise RequestFailed(reason, code, float(pause) if pause.isdecimal() else 0)


def _replies(answer: Any) -> list[Reply]:
    """Return the choices of an answer. Raises several errors if it is not OpenAI's."""
    replies = []
    for choice in answer["choices"]:
        message = choice["message"]
        content = message.get("content") or ""
        if isinstance(content, list):  # Mistral's models send thoughts as parts of other types
            content = "".join(part["text"] for part in content if part["type"] == "text")
        # JSON may contain half of a surrogate pair, which cannot be written to a file.
        content = content.encode("utf-8", "replace").decode()
        is_cut = choice.get("finish_reason") == "length"
        replies.append(Reply(without_thoughts(content), is_cut))
    if not replies:
        raise ValueError
    return replies
