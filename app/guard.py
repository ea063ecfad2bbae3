"""Refuses requests for other hosts or routes, from other origins, or without the token."""

import base64
import binascii
import hmac
import ipaddress
import os
import re
import socket
from collections.abc import Iterable
from typing import Optional
from urllib.parse import unquote, urlsplit

from captioning.runtime.errors import UserError

TOKEN_VARIABLE = "APP_TOKEN"  # an environment variable; `ps` shows flags, but not variables
# When an answer has status 401 and this header, browsers ask for a user name and a password. The
# user name is ignored; the password must be the token.
CHALLENGE = 'Basic realm="SMILE captions", charset="UTF-8"'
# ROUTES are the only routes under /gradio_api that the page needs. Gradio has about seventy more.
# All of them are refused, because some make the server fetch a URL of the client's choice.
GRADIO = "gradio_api"
FILE_ROUTE, UPLOAD_ROUTE = f"/{GRADIO}/file=", f"/{GRADIO}/upload"
EVENT_ROUTES = (f"/{GRADIO}/queue/join", f"/{GRADIO}/run/predict")
READ_ROUTES = f"/{GRADIO}/(upload_progress|queue/data|app_id|file=/[^/].*)"
ROUTES = re.compile("|".join((*EVENT_ROUTES, UPLOAD_ROUTE, READ_ROUTES)))


def read_token(flag_value: Optional[str]) -> Optional[str]:
    """Return the token of the flag --token, or else of the environment variable TOKEN_VARIABLE.

    flag_value: the value of --token; None if the flag is not given. Returns None if neither the
    flag nor the variable is set. Raises UserError for an invalid token.
    """
    token = flag_value
    if token is None:
        token = os.environ.get(TOKEN_VARIABLE) or None
    if token is None:
        return None
    if not token or token != token.strip() or not (token.isascii() and token.isprintable()):
        raise UserError(
            f"--token (or {TOKEN_VARIABLE}) has to be printable ASCII, without a space at an end"
        )
    return token


def _parse_host_name(host: str) -> str:
    """Return the host name in a Host header in lower case, without the port; "" if invalid."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_allowed(path: str) -> bool:
    """Whether a path may be requested.

    A path with "gradio_api" is allowed only if it matches ROUTES and contains no URL. Paths without
    "gradio_api" are all allowed. Gradio serves some of these, too: the page needs paths such as
    /assets. Paths that it does not need, such as /config, /login and /monitoring/summary, are
    harmless, because they fetch no URL and change nothing.
    """
    decoded = path
    while (once_more := unquote(decoded)) != decoded:  # the path may be encoded several times
        decoded = once_more
    if GRADIO not in decoded.lower():
        return True
    return ROUTES.fullmatch(path) is not None and "://" not in decoded


def is_own_origin(url: str, headers) -> bool:
    """Whether a URL has the host and port of the header Host or X-Forwarded-Host.

    A proxy in front of this server sets X-Forwarded-Host. If a port is missing, it is the default
    port of the URL's scheme. A page of another origin cannot make a browser change either header.
    """
    own_hosts = (headers.get("host", ""), headers.get("x-forwarded-host", "").partition(",")[0])
    try:
        parsed_url = urlsplit(url)
        default_port = {"http": 80, "https": 443}[parsed_url.scheme]
        own_addresses = [urlsplit(f"//{host.strip()}") for host in own_hosts if host.strip()]
        addresses = [
            (parts.hostname, parts.port or default_port) for parts in (parsed_url, *own_addresses)
        ]
    except (KeyError, ValueError):
        return False
    return addresses[0] in addresses[1:]


def is_from_this_page(scope, headers) -> bool:
    """Whether the request comes from this page or from a program, or follows a link to this page.

    Browsers set the header Sec-Fetch-Site, and a page cannot change this header. Browsers send it
    only over TLS and to localhost. Without it, the header Origin decides. A request with neither
    header is accepted: it comes, for example, from a program.
    """
    site = headers.get("sec-fetch-site", "none")
    if site == "same-origin":
        return True
    if site != "none":
        is_navigation = scope.get("method") == "GET" and headers.get("sec-fetch-mode") == "navigate"
        if not is_navigation or GRADIO in scope["path"]:
            return False
    origin = headers.get("origin")
    return origin is None or is_own_origin(origin, headers)


class Guard:
    """Middleware that answers refused requests with an error, and passes on others to `app`.

    address: the IP address of the socket. names: host names of this page, besides localhost and the
    machine's name. token: None if visitors need no token.

    An attacker can make a host name resolve to this machine (DNS rebinding). A page of that name
    could then read the server's answers in a visitor's browser. Requests of that page have the
    attacker's host name in the Host header, so they are refused. IP addresses in the Host header
    are not at risk, because an attacker cannot rebind them. If the socket listens on all addresses,
    any IP address is accepted, because a router may map further addresses to this machine.
    """

    def __init__(self, app, address: str, names: Iterable[str], token: Optional[str]):
        self.app, self.token = app, token
        self.address = ipaddress.ip_address(address)
        parsed_names = {_parse_host_name(name) or name for name in names}
        self.names = {"localhost", socket.gethostname().lower(), *map(str.lower, parsed_names)}

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        from starlette.datastructures import Headers
        from starlette.responses import JSONResponse

        app = self.app
        refusal = self._refusal(scope, Headers(scope=scope))
        if refusal:
            status, error_line = refusal
            answer_headers = {"www-authenticate": CHALLENGE} if status == 401 else None
            app = JSONResponse({"error": error_line}, status, answer_headers)
        await app(scope, receive, send)

    def _refusal(self, scope, headers) -> Optional[tuple[int, str]]:
        """Return the status and the error line for a request to refuse; None for others."""
        if not self.is_own_host(headers.get("host", "")):
            return 400, "the request's Host is not a name of this page; --host-name adds a name"
        if not is_from_this_page(scope, headers):
            return 403, "the request comes from a page of another origin: open this page itself"
        if not self.has_token(headers.get("authorization", "")):
            return 401, "a token is required: send the header Authorization: Bearer TOKEN"
        if not is_allowed(scope["path"]):
            return 404, "there is no such path; the API for programs is /api/caption"
        return None

    def is_own_host(self, host: str) -> bool:
        """Whether a Host header has a name or IP address of this page. The port is ignored."""
        name = _parse_host_name(host)
        if name in self.names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.address.is_unspecified or address.is_loopback or address == self.address

    def has_token(self, authorization: str) -> bool:
        """Whether an Authorization header has the token, as Bearer or as the password of Basic.

        If visitors need no token, the result is True.
        """
        if self.token is None:
            return True
        scheme, _, credentials = authorization.partition(" ")
        secret = credentials.strip().encode()
        if scheme.lower() == "basic":
            try:
                secret = base64.b64decode(secret, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(secret, self.token.encode())
