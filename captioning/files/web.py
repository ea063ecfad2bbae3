"""Limits requests to https servers: timeouts, sizes of answers and redirects."""

import asyncio
import ipaddress
import socket
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from captioning.runtime.errors import UserError

CONNECT_S, SILENCE_S = 10, 30  # to connect, between bytes
MAX_BODY_BYTES = 1 << 30
MAX_UNPACKED_BYTES = 1 << 28  # of a compressed body


async def client(**settings: Any) -> aiohttp.ClientSession:
    """Return the HTTP session for fsspec. settings: from fsspec; they override the limits here."""
    traces = aiohttp.TraceConfig()
    traces.on_request_redirect.append(_check_redirect)
    timeout = aiohttp.ClientTimeout(None, sock_connect=CONNECT_S, sock_read=SILENCE_S)
    ours = {"response_class": _LimitedResponse, "trace_configs": [traces], "timeout": timeout}
    return aiohttp.ClientSession(**{**ours, "trust_env": True, **settings})


class _LimitedResponse(aiohttp.ClientResponse):
    """A response whose body may not exceed a limit."""

    async def read(self) -> bytes:
        if self._body is None:
            part = self.request_info.headers.get("Range")  # such as "bytes=0-99"
            if part:
                first, last = part.partition("=")[2].split("-")
                most = int(last) - int(first) + 1
            else:
                packed = "Content-Encoding" in self.headers
                most = MAX_UNPACKED_BYTES if packed else MAX_BODY_BYTES
            body = bytearray()
            # The body of an error is not read.
            while self.status < 400 and (piece := await self.content.readany()):
                body += piece
                if len(body) > most:
                    self.close()
                    raise UserError(f"{self.url}: its server sends more than {most:,} bytes")
            self._body = bytes(body)
        return self._body


async def _check_redirect(session: Any, context: Any, about: Any) -> None:
    """Refuse a redirect from a public server into a private network."""
    headers = about.response.headers
    target = about.url.join(URL(headers.get("Location") or headers.get("URI") or ""))
    to_private, from_private = [
        await asyncio.to_thread(are_private, str(url), session.trust_env)
        for url in (target, about.url)
    ]
    if any(to_private) and not all(from_private):
        raise UserError(
            f"{about.url}: its server redirects to {target.host}, which is in a private network"
        )


def are_private(url: str, proxies: bool) -> list[bool]:
    """Return a bool for each IP address of the URL's host: whether it is in a private network.

    Return [False] for a host that cannot be resolved, and for a host that is reached through a
    proxy, because the proxy resolves the name. proxies: whether the caller uses the proxies that
    the environment sets.
    """
    parts = urlsplit(url)
    uses_proxy = proxies and parts.scheme in urllib.request.getproxies()
    if uses_proxy and not urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return [False]
    try:
        resolved = socket.getaddrinfo(parts.hostname, None)
    except socket.gaierror:
        return [False]
    addresses = [ipaddress.ip_address(info[4][0]) for info in resolved]
    return [
        not (getattr(address, "ipv4_mapped", None) or address).is_global for address in addresses
    ]
