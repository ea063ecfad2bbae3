"""Limits requests to https servers: timeouts, sizes of answers, redirects and retries."""

import asyncio
import time
from functools import cache
from typing import Any, Optional
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from BLIP.weights.download import are_private

CONNECT_S, SILENCE_S, TOTAL_S = 10, 30, 300  # to connect, between bytes, for the whole answer
MAX_BODY_BYTES = 1 << 30
MAX_UNPACKED_BYTES = 1 << 28  # of a compressed body
COOLDOWN_S = 60  # before the next request to a server that does not answer
MAX_SILENT_FILES = 10  # after this many files in a row without an answer, files fail at once


class Refused(Exception):
    """An answer is not accepted, for example because it is too long.

    The text says why, and follows the address in error lines.
    """


async def client(**settings: Any) -> aiohttp.ClientSession:
    """Return the HTTP session for fsspec. settings: from fsspec; they override the limits here."""
    traces = aiohttp.TraceConfig()
    traces.on_request_redirect.append(_check_redirect)
    timeout = aiohttp.ClientTimeout(TOTAL_S, sock_connect=CONNECT_S, sock_read=SILENCE_S)
    ours = {"response_class": _LimitedResponse, "trace_configs": [traces], "timeout": timeout}
    return aiohttp.ClientSession(**{**ours, **settings})


class _LimitedResponse(aiohttp.ClientResponse):
    """A response whose body may not exceed a limit."""

    async def read(self) -> bytes:
        if self._body is None:
            max_bytes, body = self._max_bytes(), bytearray()
            # The body of an error is not read.
            while self.status < 400 and (piece := await self.content.readany()):
                body += piece
                if len(body) > max_bytes:
                    self.close()
                    raise Refused(f"its server sends more than {max_bytes:,} bytes, the limit")
            self._body = bytes(body)
        return self._body

    def _max_bytes(self) -> int:
        part = self.request_info.headers.get("Range")  # such as "bytes=0-99"
        if part:
            first, last = part.partition("=")[2].split("-")
            return int(last) - int(first) + 1
        return MAX_UNPACKED_BYTES if "Content-Encoding" in self.headers else MAX_BODY_BYTES


async def _check_redirect(session: Any, context: Any, about: Any) -> None:
    """Refuse a redirect from a public server into a private network."""
    headers = about.response.headers
    target = about.url.join(URL(headers.get("Location") or headers.get("URI") or ""))
    target_is_private, source_is_private = await asyncio.gather(
        *(
            asyncio.to_thread(are_private, str(url), session.trust_env)
            for url in (target, about.url)
        )
    )
    if any(target_is_private) and not all(source_is_private):
        raise Refused(f"its server redirects to {target.host}, which is in a private network")


class CircuitBreaker:
    """Limits requests to a server that does not answer, so that long lists of files still end.

    A server does not answer a file if the request times out or the connection fails. After two such
    files in a row, the server gets at most one request per COOLDOWN_S seconds. During the pause,
    the next file waits if the server has answered before, because the outage may be short. It fails
    without a request if the server has never answered, or was silent for MAX_SILENT_FILES files.

    A request that times out is retried once.
    """

    def __init__(self) -> None:
        self.silent_files, self.paused_until, self.answered = 0, 0.0, False

    def allows_request(self) -> bool:
        """Return whether a file may be requested. Pauses first if necessary."""
        left = self.paused_until - time.monotonic()
        if self.silent_files > 1 and left > 0:
            if not self.answered or self.silent_files >= MAX_SILENT_FILES:
                return False
            time.sleep(left)
        return True

    def gives_up(self, tries: int, error: Exception) -> bool:
        """Return whether to give up a file after `tries` requests. error: of the last request."""
        return self.silent_files > 1 or (isinstance(error, asyncio.TimeoutError) and tries > 1)

    def record(self, error: Optional[Exception]) -> None:
        """Record how the last request for a file ended."""
        silent = isinstance(error, _SILENT)
        self.silent_files = self.silent_files + 1 if silent else 0
        self.answered = self.answered or not silent
        self.paused_until = time.monotonic() + COOLDOWN_S


_SILENT = (asyncio.TimeoutError, aiohttp.ClientConnectorError)


def circuit_breaker_of(address: str) -> CircuitBreaker:
    """Return the circuit breaker of the server of an https address, the same in each call.

    For a bucket, return a new one, so that every request is allowed.
    """
    return _of_server(urlsplit(address).netloc) if address.startswith("http") else CircuitBreaker()


@cache
def _of_server(server: str) -> CircuitBreaker:
    return CircuitBreaker()


def cause(error: Exception) -> Exception:
    """Return the refusal, timeout or failed connection that caused fsspec's error, if any.

    For another cause, return the error itself.
    """
    return error.__cause__ if isinstance(error.__cause__, (Refused, *_SILENT)) else error
