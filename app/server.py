"""Serves the page and the API on one port."""

import asyncio
import ipaddress
import os
import random
import signal
import socket
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Optional

from app.dynamic_batcher import Disconnected
from app.guard import Guard
from app.options import page_defaults, read_options
from app.service import CaptionService
from app.uploads import NO_ROOM, BodyChecks, Uploads
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line
from captioning.scenes.make import draw
from captioning.scenes.world import random_scene

NUM_EXAMPLES, EXAMPLES_SEED = 6, 11
API = "/api/caption"
CLIENT_CLOSED_REQUEST = 499  # nginx's status; the client is gone, so only the metrics show it
PHOTO = "the photo"  # the photo's name in error lines of the API, which gets no file name
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
        from fastapi import FastAPI

        from app.connection import TimedConnection
        from app.metrics import Metrics
        from app.page import add_page

        examples = draw_examples(Path(folder))
        uploads = Uploads(Path(folder), service.limits, examples)
        server = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        add_api(server, service, uploads)
        server.add_middleware(Metrics, service=service, path=API)
        server.add_middleware(BodyChecks, uploads=uploads, exempt_path=API)
        server.add_middleware(Guard, address=host, names=names, token=token)
        config = uvicorn.Config(
            add_page(server, service, examples, address),
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


def add_api(server, service: CaptionService, uploads: Uploads) -> None:
    """Add the route POST /api/caption?KEY=VALUE... to a FastAPI server.

    The body is the file of a photo. KEY is a field of `app.options.Options`, or `checkpoint` for a
    checkpoint's label. `checkpoint` may be repeated; the default is all checkpoints. The answer is
    a list of `Caption.record()`, one per checkpoint. After an error, the answer is {"error": one
    line}, with status 400, 413 (the photo has too many bytes) or 503 (too many callers wait, or the
    upload folder is full).
    """
    from anyio import CapacityLimiter
    from anyio.to_thread import run_sync
    from fastapi import Request
    from fastapi.responses import JSONResponse
    from starlette.requests import ClientDisconnect

    defaults, limits = page_defaults(service.checkpoints[0]), service.limits
    all_labels = [checkpoint.label for checkpoint in service.checkpoints]
    slots = threading.BoundedSemaphore(limits.queue + 1)  # one caller is served, `queue` wait
    # There is a thread for each caller, because only calls that overlap can share a batch.
    threads = CapacityLimiter(limits.queue + 1)

    def error_response(message: str, status: int):
        return JSONResponse({"error": message}, status)

    async def write_body(request: Request, file) -> Optional[JSONResponse]:
        """Write a request's body to the file; return an error response, or None."""
        size = 0
        try:
            async for part in request.stream():
                size += len(part)
                if size > limits.upload_bytes:
                    return error_response(f"{PHOTO}: above {limits.upload_mb:g} MB", 413)
                if not uploads.has_room():
                    return error_response(NO_ROOM, 503)
                file.write(part)
        except ClientDisconnect:
            return error_response("disconnected", CLIENT_CLOSED_REQUEST)
        file.flush()
        return None

    @server.post(API)
    async def caption(request: Request) -> JSONResponse:
        with tempfile.NamedTemporaryFile() as file:
            if error := await write_body(request, file):
                return error
            # Acquire a slot only after the body is read, so that slow uploads do not occupy slots.
            if not slots.acquire(blocking=False):
                return error_response("too many callers are waiting: try again in a while", 503)
            disconnected = threading.Event()
            watch_task = asyncio.create_task(_watch_connection(request, disconnected))
            try:
                values = {**defaults, **request.query_params}
                values.pop("checkpoint", None)
                labels = request.query_params.getlist("checkpoint") or all_labels
                options = read_options(values)
                _, captions = await run_sync(
                    service.caption_file,
                    Path(file.name),
                    PHOTO,
                    labels,
                    options,
                    disconnected,
                    limiter=threads,
                )
                return JSONResponse([caption.record() for caption in captions])
            except UserError as error:
                return error_response(str(error), 400)
            except Disconnected:
                return error_response("disconnected", CLIENT_CLOSED_REQUEST)
            finally:
                watch_task.cancel()
                slots.release()


async def _watch_connection(request, disconnected: threading.Event) -> None:
    """Wait for the caller to disconnect, then set `disconnected`.

    It must be called after the body has been read, because it would consume a part of the body.
    """
    if (await request.receive())["type"] == "http.disconnect":
        disconnected.set()


def draw_examples(folder: Path) -> list[Path]:
    """Draw scenes like those of the demo, as example photos. Return the paths of the files."""
    rng = random.Random(EXAMPLES_SEED)
    paths = [folder / f"scene_{number + 1}.png" for number in range(NUM_EXAMPLES)]
    for path in paths:
        draw(random_scene(rng), rng).save(path)
    return paths
