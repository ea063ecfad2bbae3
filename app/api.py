"""The API for programs: POST /api/caption?KEY=VALUE... captions the photo in the request's body.

KEY is a field of `app.options.Options`, or `checkpoint` for a checkpoint's label. `checkpoint` may
be repeated; the default is all checkpoints. The answer is a list of `Caption.record()`, one per
checkpoint. After an error, the answer is {"error": one line}, with status 400, 413 (the photo has
too many bytes) or 503 (too many callers wait, or the upload folder is full).
"""

import asyncio
import tempfile
import threading
from pathlib import Path
from typing import IO

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from app.dynamic_batcher import Disconnected
from app.options import page_defaults, read_options
from app.service import Caption, CaptionService
from app.uploads import NO_ROOM, Uploads
from captioning.runtime.errors import UserError

PATH = "/api/caption"
CLIENT_CLOSED_REQUEST = 499  # nginx's status; the client is gone, so only the metrics show it
PHOTO = "the photo"  # the photo's name in error lines, because the API gets no file name


class RequestError(Exception):
    """Ends a request with an error. message: one line. status: the HTTP status of the answer."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


class CaptionApi:
    """Answers requests to PATH. At most one caller is served, and `limits.queue` callers wait."""

    def __init__(self, service: CaptionService, uploads: Uploads):
        self.service, self.uploads = service, uploads
        self.defaults = page_defaults(service.checkpoints[0])
        self.default_options = read_options(self.defaults)
        max_callers = service.limits.queue + 1
        self._slots = threading.BoundedSemaphore(max_callers)
        # There is a thread for each caller, because only calls that overlap can share a batch.
        self._threads = CapacityLimiter(max_callers)

    async def answer(self, request: Request) -> JSONResponse:
        """Return the captions of the photo in the request's body, or an error."""
        try:
            with tempfile.NamedTemporaryFile() as file:
                await self._write_body(request, file)
                captions = await self._caption(request, Path(file.name))
            return JSONResponse([caption.record() for caption in captions])
        except RequestError as error:
            return JSONResponse({"error": str(error)}, error.status)
        except UserError as error:
            return JSONResponse({"error": str(error)}, 400)
        except (ClientDisconnect, Disconnected):
            return JSONResponse({"error": "disconnected"}, CLIENT_CLOSED_REQUEST)

    async def _write_body(self, request: Request, file: IO[bytes]) -> None:
        """Write a request's body to the file. Raises RequestError and ClientDisconnect."""
        limits, size = self.service.limits, 0
        async for part in request.stream():
            size += len(part)
            if size > limits.upload_bytes:
                raise RequestError(f"{PHOTO}: above {limits.upload_mb:g} MB", 413)
            if not self.uploads.has_room():
                raise RequestError(NO_ROOM, 503)
            file.write(part)
        file.flush()

    async def _caption(self, request: Request, path: Path) -> list[Caption]:
        """Return the captions of a photo. Raises RequestError, UserError and Disconnected."""
        # A slot is acquired only after the body is read, so that slow uploads do not occupy slots.
        if not self._slots.acquire(blocking=False):
            raise RequestError("too many callers are waiting: try again in a while", 503)
        disconnected = threading.Event()
        watch_task = asyncio.create_task(_watch_connection(request, disconnected))
        try:
            values = {**self.defaults, **request.query_params}
            values.pop("checkpoint", None)
            labels = request.query_params.getlist("checkpoint")
            labels = labels or [checkpoint.label for checkpoint in self.service.checkpoints]
            options = read_options(values)
            for name in request.query_params.keys() & options.unused():
                if getattr(options, name) != getattr(self.default_options, name):
                    raise UserError(f"{name} has no effect with the other parameters")
            arguments = (path, PHOTO, labels, options, disconnected)
            _, captions = await run_sync(
                self.service.caption_file, *arguments, limiter=self._threads
            )
            return captions
        finally:
            watch_task.cancel()
            self._slots.release()


async def _watch_connection(request: Request, disconnected: threading.Event) -> None:
    """Wait for the caller to disconnect, then set `disconnected`.

    It must be called after the body has been read, because it would consume a part of the body.
    """
    if (await request.receive())["type"] == "http.disconnect":
        disconnected.set()
