"""Who is let in: requests that name this page as their host, with the token where there is one."""

import base64
import binascii
import hmac
import ipaddress
import os
import socket
from collections.abc import Iterable
from typing import Optional
from urllib.parse import urlsplit

from captioning.runtime.errors import UserError

TOKEN = "APP_TOKEN"  # of the environment, which no list of processes shows
# A browser asks its user for a name, which is passed over, and a password, which is the token.
CHALLENGE = 'Basic realm="SMILE captions", charset="UTF-8"'


def checked_token(given: Optional[str]) -> Optional[str]:
    """The token of the command line, else of the environment, if any. Raises UserError."""
    token = os.environ.get(TOKEN) or None if given is None else given
    if token is not None and (
        not token or token != token.strip() or not (token.isascii() and token.isprintable())
    ):
        raise UserError(
            f"--token (or {TOKEN}) has to be letters, digits and signs of ASCII, no space at an end"
        )
    return token


def is_local(address: str) -> bool:
    """Whether a socket that is bound to it is reached from this machine alone."""
    return ipaddress.ip_address(address).is_loopback


def _name_in(host: str) -> str:
    """A Host header's name, in lower case and without the port; empty where it is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


class Guard:
    """Middleware. bound: the address that the socket has; names: further ones of this page.

    A page elsewhere can point its own name at this machine (DNS rebinding), and then read what
    is answered; the Host header tells, as it keeps that name. No address can be pointed anywhere:
    where the socket takes all of a machine's, any is right, since a router may give it others.
    """

    def __init__(self, app, bound: str, names: Iterable[str], token: Optional[str]):
        self.app, self.token = app, token
        self.bound = ipaddress.ip_address(bound)
        given = {_name_in(name) or name for name in names}
        self.names = {"localhost", socket.gethostname().lower(), *map(str.lower, given)}

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        from starlette.datastructures import Headers
        from starlette.responses import JSONResponse

        headers = Headers(scope=scope)
        app = self.app
        if not self.is_own(headers.get("host", "")):
            line = "the request's Host is not this page's; --host-name adds another name"
            app = JSONResponse({"error": line}, 400)
        elif not self.is_known(headers.get("authorization", "")):
            line = "a token is needed: the header Authorization: Bearer TOKEN"
            app = JSONResponse({"error": line}, 401, {"www-authenticate": CHALLENGE})
        await app(scope, receive, send)

    def is_own(self, host: str) -> bool:
        """Whether a Host header, with a port or without, is this page's."""
        name = _name_in(host)
        if name in self.names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.bound.is_unspecified or address.is_loopback or address == self.bound

    def is_known(self, authorization: str) -> bool:
        """Whether an Authorization header, Bearer or Basic, has the token, if there is one."""
        if self.token is None:
            return True
        scheme, _, given = authorization.partition(" ")
        secret = given.strip().encode()
        if scheme.lower() == "basic":
            try:
                secret = base64.b64decode(secret, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(secret, self.token.encode())
