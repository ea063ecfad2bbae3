"""Servers of https: how long one is waited for, what it may send, and where it may lead."""

import asyncio
import time
from collections import defaultdict
from typing import Any, Optional
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from BLIP.weights.download import private

CONNECT_S, SILENCE_S, WHOLE_S = 10, 30, 300  # until connected, without a byte, until the last byte
LARGEST = 1 << 30  # bytes of a body
UNPACKED = 1 << 28  # of one that is sent compressed, of which a few bytes may stand for any number
REST_S = 60  # before a server that does not answer is asked again
# Files without an answer, after which a server that has answered before is waited for no more.
OUTAGE = 10


class Refused(Exception):
    """Why an answer is not taken, in words that go after an address."""


async def client(**settings: Any) -> aiohttp.ClientSession:
    """The session that fsspec asks for; settings: its user's, which come before ours."""
    traces = aiohttp.TraceConfig()
    traces.on_request_redirect.append(_check_redirect)
    timeout = aiohttp.ClientTimeout(WHOLE_S, sock_connect=CONNECT_S, sock_read=SILENCE_S)
    ours = {"response_class": _Answer, "trace_configs": [traces], "timeout": timeout}
    return aiohttp.ClientSession(**{**ours, **settings})


class _Answer(aiohttp.ClientResponse):
    """An answer whose body is read as far as it may go."""

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
    """Refuse to be led into a private network by one who is outside of it."""
    headers = about.response.headers
    target = about.url.join(URL(headers.get("Location") or headers.get("URI") or ""))
    inside, begin = await asyncio.gather(
        *(asyncio.to_thread(private, str(url), session.trust_env) for url in (target, about.url))
    )
    if any(inside) and not all(begin):
        raise Refused(f"its server leads to {target.host}, which is in a private network")


class Patience:
    """How often a server may be asked for a file.

    One that gave no answer for two files in a row is asked once a minute. Until then a file waits
    where the server has answered before and may have an outage; where it never has, or not for ten
    files, it fails at once, so that a list with a thousand of them ends. A server that takes its
    time is asked twice.
    """

    def __init__(self) -> None:
        self.files, self.until, self.answered = 0, 0.0, False

    def allows(self) -> bool:
        """Whether a file may be asked for, where need be after a pause."""
        left = self.until - time.monotonic()
        if self.files > 1 and left > 0:
            if not self.answered or self.files >= OUTAGE:
                return False
            time.sleep(left)
        return True

    def is_over(self, tries: int, error: Exception) -> bool:
        """After so many tries of a file, of which the last ended so."""
        return self.files > 1 or (isinstance(error, asyncio.TimeoutError) and tries > 1)

    def end(self, error: Optional[Exception]) -> None:
        """How the last try of a file ended."""
        silent = isinstance(error, _SILENT)
        self.files = self.files + 1 if silent else 0
        self.answered = self.answered or not silent
        self.until = time.monotonic() + REST_S


_SILENT = (asyncio.TimeoutError, aiohttp.ClientConnectorError)
_patience: defaultdict[str, Patience] = defaultdict(Patience)


def patience_with(address: str) -> Patience:
    """That of this process with the server of an address."""
    return _patience[urlsplit(address).netloc]


def cause(error: Exception) -> Exception:
    """The refusal or silence that fsspec reports as a missing file, or else the error itself."""
    return error.__cause__ if isinstance(error.__cause__, (Refused, *_SILENT)) else error
