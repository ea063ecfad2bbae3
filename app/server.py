"""Serves the page and the API on one port."""

import ipaddress
import os
import random
import signal
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Optional

from app.guard import Guard
from app.service import CaptionService
from app.uploads import BodyChecks, Uploads
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line
from captioning.scenes.make import draw
from captioning.scenes.world import random_scene

NUM_EXAMPLES, EXAMPLES_SEED = 6, 11
# Environment variables that Gradio and huggingface_hub read when they are imported.
NO_TELEMETRY = {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_DISABLE_TELEMETRY": "1"}
# Prevents the browser from loading fonts, scripts and images from other servers.
CONTENT_SECURITY_POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'self'; "
    "form-action 'self'"
)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises UserError if the address is in use or invalid."""
    try:
        return socket.create_server((host, port), backlog=100)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"cannot listen on {host}:{port} ({reason}): choose another --port"
        ) from error


def serve(
    service: CaptionService,
    server_socket: socket.socket,
    names: Iterable[str],
    token: Optional[str],
) -> None:
    """Serve until interrupted. Uploads are kept in a temporary folder.

    names: further host names of the server, see `app.guard.Guard`. token: the token that visitors
    need; None if they need none.
    """
    os.environ.update(NO_TELEMETRY)
    with tempfile.TemporaryDirectory(prefix="smile-app-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        tempfile.tempdir = folder
        host, port = server_socket.getsockname()[:2]
        address = f"http://{host}:{port}"

        import uvicorn

        from app.connection import TimedConnection

        server = build_server(service, Path(folder), address)
        server.add_middleware(Guard, address=host, names=names, token=token)
        config = uvicorn.Config(
            server,
            http=TimedConnection,
            log_level="warning",
            timeout_graceful_shutdown=2,
            server_header=False,
            headers=[("content-security-policy", CONTENT_SECURITY_POLICY)],
        )
        # After SIGTERM, uvicorn shuts down and sends itself the signal again. This handler then
        # raises KeyboardInterrupt, which is caught below.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        if token is None and not ipaddress.ip_address(host).is_loopback:
            log_line(
                f"anyone who reaches {host} can caption here: set a --token, or put a "
                "proxy with a login before this server"
            )
        try:
            log_line(f"open {address} in a browser; Ctrl-C ends it")
            uvicorn.Server(config).run(sockets=[server_socket])
        except KeyboardInterrupt:
            log_line("stopped")


def build_server(service: CaptionService, folder: Path, address: str):
    """Return a FastAPI server of the page and the API, without `app.guard.Guard`.

    folder: for uploads and examples. address: see `app.page.build_page`.
    """
    from fastapi import FastAPI

    from app import api
    from app.metrics import Metrics
    from app.page import add_page

    examples = draw_examples(folder)
    uploads = Uploads(folder, service.limits, examples)
    server = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    server.add_route(api.PATH, api.CaptionApi(service, uploads).answer, methods=["POST"])
    server.add_middleware(Metrics, service=service, path=api.PATH)
    server.add_middleware(BodyChecks, uploads=uploads, exempt_path=api.PATH)
    return add_page(server, service, examples, address)


def draw_examples(folder: Path) -> list[Path]:
    """Draw scenes like those of the demo, as example photos. Return the paths of the files."""
    rng = random.Random(EXAMPLES_SEED)
    paths = [folder / f"scene_{number + 1}.png" for number in range(NUM_EXAMPLES)]
    for path in paths:
        draw(random_scene(rng), rng).save(path)
    return paths
