"""Limits the disk space of uploads and the size of requests, and checks the files they name."""

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.guard import EVENTS, UPLOAD
from app.photos import Limits

MAX_BODY_BYTES = 1 << 20  # of a request's body that is not an uploaded file
KEEP_FILES_S = 3600  # how long Gradio keeps a file
CLEANUP_INTERVAL_S = 600  # how often Gradio removes older files
NO_ROOM = "this page has no more room for photos: try again in an hour"


class Uploads:
    """The folder of uploads, limited to twice the bytes of a full Batch of the largest photos."""

    def __init__(self, folder: Path, limits: Limits):
        self.folder, self.max_bytes = folder.resolve(), 2 * limits.photos * limits.upload_bytes
        self._was_below_limit, self._next_measurement = True, 0.0

    def contains(self, path: Any) -> bool:
        """Whether `path` is absolute and in the folder, after links and `..` are resolved."""
        try:
            return os.path.isabs(path) and Path(path).resolve().is_relative_to(self.folder)
        except (TypeError, ValueError, OSError, RuntimeError):
            return False

    def has_room(self) -> bool:
        """Whether the folder is below its limit. It is measured at most once per second."""
        if time.monotonic() >= self._next_measurement:
            size = 0
            for folder, _, names in os.walk(self.folder):
                for name in names:
                    with suppress(FileNotFoundError):  # removed since it was listed
                        size += os.path.getsize(os.path.join(folder, name))
            self._was_below_limit = size < self.max_bytes
            self._next_measurement = time.monotonic() + 1
        return self._was_below_limit


class BodyChecks:
    """Middleware that checks the bodies of requests, except those to `exempt_path`.

    exempt_path: the path of the API, whose handler reads a photo and checks its size itself.
    """

    def __init__(self, app, uploads: Uploads, exempt_path: str):
        self.app, self.uploads, self.exempt_path = app, uploads, exempt_path

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http" or scope["path"] == self.exempt_path:
            await self.app(scope, receive, send)
        elif scope["path"] == UPLOAD:
            await self.app(scope, self._limit_upload(receive), send)
        else:
            await self._check_body(scope, receive, send)

    def _limit_upload(self, receive):
        """Return a `receive` of an upload that raises an error if it is cut off or has no room.

        Gradio shows the error and removes the file.
        """
        from starlette.formparsers import MultiPartException

        async def receive_checked():
            message = await receive()
            if message["type"] == "http.disconnect":
                raise MultiPartException("the upload was cut short")
            if not self.uploads.has_room():
                raise MultiPartException(NO_ROOM)
            return message

        return receive_checked

    async def _check_body(self, scope, receive, send) -> None:
        """Read and check the whole body, then pass it on, or answer with an error."""
        from starlette.responses import JSONResponse

        body, has_more = b"", True
        while has_more:
            message = await receive()
            if message["type"] != "http.request":
                return
            body, has_more = body + message.get("body", b""), message.get("more_body", False)
            if len(body) > MAX_BODY_BYTES:
                error_line = f"the body has more than {MAX_BODY_BYTES} bytes"
                await JSONResponse({"error": error_line}, 413)(scope, receive, send)
                return
        app = self.app
        if scope["path"] in EVENTS:
            try:
                body = self._with_uploads_only(body)
            except (ValueError, RecursionError):
                error_line = "the file was not uploaded to this page: upload it first"
                app = JSONResponse({"error": error_line}, 400)
        messages = [{"type": "http.request", "body": body}]

        async def replay():
            return messages.pop() if messages else await receive()

        await app(scope, replay, send)

    def _with_uploads_only(self, body: bytes) -> bytes:
        """Return the JSON of an event without "url", which Gradio would download.

        Raises ValueError if it is no JSON, and for a "path" that is not an upload: Gradio would
        copy any file of the machine.
        """
        content = json.loads(body)
        pending: list[Any] = [content]
        while pending:
            value = pending.pop()
            if isinstance(value, dict):
                value.pop("url", None)
                path = value.get("path")
                if path is not None and not self.uploads.contains(path):
                    raise ValueError(f"{path} is not an upload")
                pending.extend(value.values())
            elif isinstance(value, list):
                pending.extend(value)
        return json.dumps(content).encode()
