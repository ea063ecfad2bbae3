"""The server: the page and its API on one port, out of reach of any other machine unless told."""

import os
import random
import signal
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any

from app.options import Options, defaults_of, read_options
from app.photos import read_photo
from app.service import CaptionService
from captioning.runtime.errors import UserError
from captioning.runtime.progress import say
from captioning.scenes.make import draw
from captioning.scenes.world import random_scene

EXAMPLES, EXAMPLES_SEED = 6, 11
NAME = "the photo"  # in errors of the API: a request's body has no name
# No analytics and no news from the network. Gradio and the hub's library read it when imported.
SILENCE = {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_DISABLE_TELEMETRY": "1"}
# Obeyed by the browser: fonts, scripts and pictures of other servers are not asked for.
POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'self'; "
    "form-action 'self'"
)


def listen(host: str, port: int) -> socket.socket:
    """A socket that already listens. Raises UserError where the address is taken or is none."""
    try:
        return socket.create_server((host, port), backlog=100)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"cannot listen on {host}:{port} ({reason}): name another --port"
        ) from error


def serve(service: CaptionService, listening: socket.socket) -> None:
    """Until it is interrupted. What visitors upload lies in a folder that is removed then."""
    os.environ.update(SILENCE)
    with tempfile.TemporaryDirectory(prefix="smile-app-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        tempfile.tempdir = folder
        host, port = listening.getsockname()[:2]
        address = f"http://{host}:{port}"

        import uvicorn
        from fastapi import FastAPI

        from app.page import add_page

        server = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        add_api(server, service)
        config = uvicorn.Config(
            add_page(server, service, draw_examples(Path(folder)), address),
            log_level="warning",
            timeout_graceful_shutdown=2,
            server_header=False,
            headers=[("content-security-policy", POLICY)],
        )
        # uvicorn ends well on both signals, then raises them once more.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        say(f"open {address} in a browser; Ctrl-C ends it")
        try:
            uvicorn.Server(config).run(sockets=[listening])
        except KeyboardInterrupt:
            say("stopped")


def add_api(server, service: CaptionService) -> None:
    """Give a FastAPI server POST /api/caption?KEY=VALUE..., whose body is the photo's file.

    The keys are those of `Options`, and `checkpoint`, a label, once or several times. Answers
    [{caption, score, label, checkpoint, settings, words}], or {"error": one line} with the status
    400, 413 for a photo beyond the limits' bytes, 503 where too many wait.
    """
    from fastapi import Request
    from fastapi.concurrency import run_in_threadpool
    from fastapi.responses import JSONResponse

    defaults, limits = defaults_of(service.checkpoints[0]), service.limits
    known = [checkpoint.label for checkpoint in service.checkpoints]
    places = threading.BoundedSemaphore(limits.queue + 1)

    def error(message: str, status: int) -> JSONResponse:
        return JSONResponse({"error": message}, status)

    def answer(path: Path, labels: list[str], options: Options) -> list[dict[str, Any]]:
        photo = read_photo(path, NAME, limits)
        return [service.caption(photo, c, options).record() for c in service.chosen(labels)]

    @server.post("/api/caption")
    async def caption(request: Request) -> JSONResponse:
        if not places.acquire(blocking=False):
            return error("too many are waiting: try again in a while", 503)
        try:
            with tempfile.NamedTemporaryFile() as file:
                size = 0
                async for part in request.stream():
                    size += len(part)
                    if size > limits.upload_bytes:
                        return error(f"{NAME}: above {limits.upload_mb:g} MB", 413)
                    file.write(part)
                file.flush()
                given = {**defaults, **request.query_params}
                given.pop("checkpoint", None)
                labels = request.query_params.getlist("checkpoint") or known
                options = read_options(given)
                captions = await run_in_threadpool(answer, Path(file.name), labels, options)
                return JSONResponse(captions)
        except UserError as refused:
            return error(str(refused), 400)
        finally:
            places.release()


def draw_examples(folder: Path) -> list[Path]:
    """Write a few scenes of the demo's world into the folder; always the same ones."""
    rng = random.Random(EXAMPLES_SEED)
    paths = [folder / f"scene_{number + 1}.png" for number in range(EXAMPLES)]
    for path in paths:
        draw(random_scene(rng), rng).save(path)
    return paths
