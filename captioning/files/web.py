"""Servers of https: timeouts, limits on what they send, and which redirects are followed."""

import asyncio
import time
from collections import defaultdict
from typing import Any, Optional
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from BLIP.weights.download import private

CONNECT_S, SILENCE_S, WHOLE_S = 10, 30, 300  # to connect, between bytes, for the whole answer
LARGEST = 1 << 30  # bytes of a body
UNPACKED = 1 << 28  # of a compressed body: a few bytes can unpack to any number
REST_S = 60  # before a server that does not answer is asked again
OUTAGE = 10  # files in a row without an answer, after which an outage is not waited for


class Refused(Exception):
    """An answer is not accepted; the reason is worded to follow an address."""


async def client(**settings: Any) -> aiohttp.ClientSession:
    """Return the session that fsspec asks for; `settings`, the user's, override ours."""
    traces = aiohttp.TraceConfig()
    traces.on_request_redirect.append(_check_redirect)
    timeout = aiohttp.ClientTimeout(WHOLE_S, sock_connect=CONNECT_S, sock_read=SILENCE_S)
    ours = {"response_class": _LimitedResponse, "trace_configs": [traces], "timeout": timeout}
    return aiohttp.ClientSession(**{**ours, **settings})


class _LimitedResponse(aiohttp.ClientResponse):
    """A response whose body may not exceed a limit."""

    async def read(self) -> bytes:
        if self._body is None:
            most, body = self._most(), bytearray()
            while self.status < 400 and (piece := await self.content.readany()):
                body += piece
                if len(body) > most:
                    self.close()
                    raise Refused(f"its server sends more than the {most:,} bytes that it may")
            self._body = bytes(body)
        return self._body

    def _most(self) -> int:
        part = self.request_info.headers.get("Range")
        if part:
            first, last = part.partition("=")[2].split("-")
            return int(last) - int(first) + 1
        return UNPACKED if "Content-Encoding" in self.headers else LARGEST


async def _check_redirect(session: Any, context: Any, about: Any) -> None:
    """Refuse a redirect from a public server into a private network."""
    headers = about.response.headers
    target = about.url.join(URL(headers.get("Location") or headers.get("URI") or ""))
    inside, begin = await asyncio.gather(
        *(asyncio.to_thread(private, str(url), session.trust_env) for url in (target, about.url))
    )
    if any(inside) and not all(begin):
        raise Refused(f"its server leads to {target.host}, which is in a private network")


class Patience:
    """Decides whether a server may be asked for another file, so that a list of thousands ends.

    A server that gave no answer for two files in a row is asked once per REST_S. Until then a file
    waits if the server has answered before (it may have an outage), and fails at once if it never
    has, or not for OUTAGE files. A file that times out is requested twice.
    """

    def __init__(self) -> None:
        self.silent_files, self.until, self.answered = 0, 0.0, False

    def allows(self) -> bool:
        """Return whether a file may be requested, after a pause if necessary."""
        left = self.until - time.monotonic()
        if self.silent_files > 1 and left > 0:
            if not self.answered or self.silent_files >= OUTAGE:
                return False
            time.sleep(left)
        return True

    def is_over(self, tries: int, error: Exception) -> bool:
        """Return whether to give a file up after `tries` requests, of which the last raised."""
        return self.silent_files > 1 or (isinstance(error, asyncio.TimeoutError) and tries > 1)

    def end(self, error: Optional[Exception]) -> None:
        """Record how the last request for a file ended."""
        silent = isinstance(error, _SILENT)
        self.silent_files = self.silent_files + 1 if silent else 0
        self.answered = self.answered or not silent
        self.until = time.monotonic() + REST_S


class _BucketPatience(Patience):
    """With a bucket: every file gets all tries."""

    def is_over(self, tries: int, error: Exception) -> bool:
        return False


_SILENT = (asyncio.TimeoutError, aiohttp.ClientConnectorError)
_patience: defaultdict[str, Patience] = defaultdict(Patience)


def patience_with(address: str) -> Patience:
    """Return this process's Patience with the server of an address."""
    is_bucket = not address.startswith("http")
    return _BucketPatience() if is_bucket else _patience[urlsplit(address).netloc]


def cause(error: Exception) -> Exception:
    """Return the refusal or timeout that fsspec reports as a missing file, or the error itself."""
    return error.__cause__ if isinstance(error.__cause__, (Refused, *_SILENT)) else error
