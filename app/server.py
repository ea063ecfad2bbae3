"""The server: the page and its API on one port, out of reach of any other machine unless told."""

import os
import random
import signal
import socket
import tempfile
from pathlib import Path

from app.service import CaptionService
from captioning.runtime.errors import UserError
from captioning.runtime.progress import say
from captioning.scenes.make import draw
from captioning.scenes.world import random_scene

EXAMPLES, EXAMPLES_SEED = 6, 11
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

        config = uvicorn.Config(
            build(service, Path(folder), address),
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


def build(service: CaptionService, folder: Path, address: str):
    """The application of API and page. folder: of the drawn examples."""
    import gradio as gr
    from fastapi import FastAPI

    from app.api import add_api
    from app.page import build_page, look

    server = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    add_api(server, service)
    return gr.mount_gradio_app(
        server,
        build_page(service, draw_examples(folder), address),
        path="/",
        max_file_size=service.limits.upload_bytes,
        ssr_mode=False,
        footer_links=[],
        run_history=False,
        **look(),
    )


def draw_examples(folder: Path) -> list[Path]:
    """Write a few scenes of the demo's world into the folder; always the same ones."""
    rng = random.Random(EXAMPLES_SEED)
    paths = [folder / f"scene_{number + 1}.png" for number in range(EXAMPLES)]
    for path in paths:
        draw(random_scene(rng), rng).save(path)
    return paths
