"""Serves the page and its API on one port."""

import hmac
import os
import signal
import socket
import tempfile
from argparse import Namespace
from pathlib import Path

import gradio as gr
import uvicorn
from fastapi import FastAPI
from gradio import route_utils
from starlette.formparsers import MultiPartException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import JSONResponse

from app.captions import CaptionService
from app.guard import guard
from app.page import build_page
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line

OWN_NAMES = ["localhost", "127.0.0.1", socket.gethostname()]
# Prevents the browser from loading fonts, scripts and images from other servers.
CONTENT_SECURITY_POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'self'; "
    "form-action 'self'"
)
FONTS = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
# What Gradio raises for values that it does not expect, such as an unknown function.
UNEXPECTED = AttributeError, LookupError, TypeError, ValueError, route_utils.FnIndexInferError


class FilesOnly(route_utils.GradioMultiPartParser):
    """Parses uploads. Gradio's own parser would keep fields that are no files in memory."""

    def on_headers_finished(self) -> None:
        super().on_headers_finished()
        if self._current_part.file is None:
            raise MultiPartException("an upload has only files")


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises UserError if the address is in use or invalid."""
    try:
        return socket.create_server((host, port), backlog=100)
    except (OSError, OverflowError) as error:
        raise UserError(
            f"cannot listen on {host}:{port} ({error}): choose another --port"
        ) from None


def serve(service: CaptionService, server_socket: socket.socket, arguments: Namespace) -> None:
    """Serve until interrupted. Uploads are in a temporary folder. arguments: the command line."""
    host, port = server_socket.getsockname()[:2]
    with tempfile.TemporaryDirectory(prefix="smile-app-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = tempfile.tempdir = os.path.realpath(folder)
        config = uvicorn.Config(
            build_server(service, arguments),
            log_level="warning",
            limit_concurrency=200,
            timeout_graceful_shutdown=2,
            headers=[("content-security-policy", CONTENT_SECURITY_POLICY)],
        )
        # After SIGTERM, uvicorn shuts down and sends itself the signal again. This handler then
        # raises KeyboardInterrupt, so that the folder is removed.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        if host not in OWN_NAMES and not arguments.token:
            log_line(
                f"anyone who reaches {host} can caption here: set a --token, or put a proxy with a "
                "login before this server"
            )
        log_line(f"open http://{host}:{port} in a browser; Ctrl-C ends it")
        uvicorn.Server(config).run(sockets=[server_socket])


def build_server(service: CaptionService, arguments: Namespace) -> FastAPI:
    """Return the server. Uploads are in Python's folder of temporary files."""
    folder, token = tempfile.gettempdir(), arguments.token
    max_bytes = arguments.max_mb * 2**20
    names = [*OWN_NAMES, arguments.host, *arguments.host_name]
    route_utils.GradioMultiPartParser = FilesOnly
    server = FastAPI()
    server.add_middleware(guard, folder=f"{folder}/", max_upload=max_bytes * arguments.max_photos)
    server.add_middleware(TrustedHostMiddleware, allowed_hosts=names)
    return gr.mount_gradio_app(
        server,
        build_page(service, arguments),
        path="/",
        app_kwargs={"exception_handlers": dict.fromkeys(UNEXPECTED, _refuse)},
        auth=token and (lambda _, password: hmac.compare_digest(password.encode(), token.encode())),
        root_path=arguments.root_path,
        max_file_size=max_bytes,
        theme=gr.themes.Default(primary_hue="blue", neutral_hue="slate", **FONTS),
        # The style is not passed as `css`, because Gradio would rewrite it and lose some rules.
        head_paths=[Path(__file__).with_name("head.html")],
        auth_message="The user name may be any.",
        run_history=False,
    )


async def _refuse(_, error: Exception) -> JSONResponse:
    line = str(error).partition(". ")[0]
    return JSONResponse({"error": f"not a call of this page: {line}"}, 400)
