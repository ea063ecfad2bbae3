"""The server: the page and its API on one port, out of reach of any other machine unless told."""

import os
import random
import signal
import socket
import tempfile
from pathlib import Path

from app.confined import Confined
from app.desk import Desk
from app.gradio_versions import SILENCE, taken
from app.limits import Limits
from captioning.runtime.errors import UserError
from captioning.runtime.progress import say
from captioning.scenes.drawing import draw
from captioning.scenes.world import random_scene

EXAMPLES, EXAMPLES_SEED = 6, 11


def listen(host: str, port: int) -> socket.socket:
    """A socket that already listens. Raises UserError where the address is taken or is none."""
    try:
        return socket.create_server((host, port), backlog=100)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"cannot listen on {host}:{port} ({reason}): name another --port"
        ) from error


def serve(desk: Desk, limits: Limits, listening: socket.socket) -> None:
    """Until it is interrupted. What visitors upload lies in a folder that is removed then."""
    os.environ.update(SILENCE)
    with tempfile.TemporaryDirectory(prefix="smile-app-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        tempfile.tempdir = folder
        host, port = listening.getsockname()[:2]
        address = f"http://{host}:{port}"
        application = build(desk, limits, Path(folder), address)

        import uvicorn

        config = uvicorn.Config(
            application, log_level="warning", timeout_graceful_shutdown=2, server_header=False
        )
        # uvicorn ends well on both signals, then raises them once more.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        say(f"open {address} in a browser; Ctrl-C ends it")
        try:
            uvicorn.Server(config).run(sockets=[listening])
        except KeyboardInterrupt:
            say("stopped")


def build(desk: Desk, limits: Limits, folder: Path, address: str):
    """The application: API, page, and the header that keeps the browser from other servers."""
    import gradio as gr
    from fastapi import FastAPI

    from app.api import add_api
    from app.page import build_page, look

    server = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    add_api(server, desk, limits)
    page = build_page(desk, limits, draw_examples(folder), address)
    settings = {**look(), "ssr_mode": False, "footer_links": [], "run_history": False}
    gr.mount_gradio_app(
        server,
        page,
        path="/",
        max_file_size=limits.upload_bytes,
        show_error=True,
        **taken(gr.mount_gradio_app, settings),
    )
    return Confined(server)


def draw_examples(folder: Path) -> list[Path]:
    """Write a few scenes of the demo's world into the folder; always the same ones."""
    rng = random.Random(EXAMPLES_SEED)
    paths = [folder / f"scene_{number + 1}.png" for number in range(EXAMPLES)]
    for path in paths:
        draw(random_scene(rng), rng).save(path)
    return paths
