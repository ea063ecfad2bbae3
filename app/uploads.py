"""Limits of requests: uploads on the disk, the size of bodies, and the files that bodies name."""

import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from app.guard import EVENTS, FILE, UPLOAD, is_own_origin
from app.photos import Limits

MAX_BODY_BYTES = 1 << 20  # of a body that is not a file
KEEP_FILES_S = 3600  # how long Gradio keeps a file
CLEANUP_INTERVAL_S = 600  # how often Gradio removes older files
NO_ROOM = "this page has no more room for photos: try again in an hour"


class Uploads:
    """The folder of uploads, and its limits.

    A batch has as many photos as the tab Batch takes. The folder's bytes are limited to two batches
    of the largest photos, its files to 100 batches. own: files of the page, which are not removed.
    """

    def __init__(self, folder: Path, limits: Limits, own: Iterable[Path] = ()):
        self.folder, self.own = folder.resolve(), {path.resolve() for path in own}
        self.bytes = 2 * limits.photos * limits.upload_bytes
        self.files = 100 * limits.photos
        self._room, self._next = True, 0.0

    def holds(self, path: Any) -> bool:
        """Whether `path` is a file in the folder after links and `..` are resolved."""
        try:
            return os.path.isabs(path) and Path(path).resolve().is_relative_to(self.folder)
        except (TypeError, ValueError, OSError, RuntimeError):
            return False

    def has_room(self) -> bool:
        """Whether the folder is below its limits. It is measured at most once per second."""
        if time.monotonic() >= self._next:
            sizes = list(self._sizes())
            self._room = sum(sizes) < self.bytes and len(sizes) < self.files
            self._next = time.monotonic() + 1
        return self._room

    def _sizes(self) -> Iterable[int]:
        """The sizes of the files. Also removes Gradio's leftovers: failed uploads and folders."""
        forgotten = time.time() - KEEP_FILES_S - 2 * CLEANUP_INTERVAL_S
        for folder, _, names in os.walk(self.folder, topdown=False):
            for path in (Path(folder, name) for name in names):
                with suppress(FileNotFoundError):
                    status = path.stat()
                    if status.st_ctime < forgotten and path not in self.own:
                        path.unlink()
                    else:
                        yield status.st_size
            with suppress(OSError):  # the folder is not empty
                if os.stat(folder).st_mtime < forgotten and folder != str(self.folder):
                    os.rmdir(folder)


class BodyChecks:
    """Middleware that checks the bodies of requests, except those to `unchecked`.

    unchecked: the path of the API, whose handler reads a photo and checks its size itself.
    """

    def __init__(self, app, uploads: Uploads, unchecked: str):
        self.app, self.uploads, self.unchecked = app, uploads, unchecked

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http" or scope["path"] == self.unchecked:
            await self.app(scope, receive, send)
        elif scope["path"] == UPLOAD:
            await self.app(scope, self._checked(receive), send)
        else:
            await self._check_whole(scope, receive, send)

    def _checked(self, receive):
        """Wrap the `receive` of an upload. After an error Gradio shows the line and removes the
        file."""
        from starlette.formparsers import MultiPartException

        async def received():
            message = await receive()
            if message["type"] == "http.disconnect":
                raise MultiPartException("the upload was cut short")
            if not self.uploads.has_room():
                raise MultiPartException(NO_ROOM)
            return message

        return received

    async def _check_whole(self, scope, receive, send) -> None:
        """Read and check the whole body before any other code sees it."""
        from starlette.datastructures import Headers
        from starlette.responses import JSONResponse

        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return
            body, more = body + message.get("body", b""), message.get("more_body", False)
            if len(body) > MAX_BODY_BYTES:
                line = f"the body has more than {MAX_BODY_BYTES} bytes"
                await JSONResponse({"error": line}, 413)(scope, receive, send)
                return
        app = self.app
        if scope["path"] in EVENTS and not self._names_uploads(body, Headers(scope=scope)):
            line = "the file was not uploaded to this page: upload it first"
            app = JSONResponse({"error": line}, 400)
        unread = [{"type": "http.request", "body": body}]

        async def replay():
            return unread.pop() if unread else await receive()

        await app(scope, replay, send)

    def _names_uploads(self, body: bytes, headers) -> bool:
        """Whether every "path" and "url" in the JSON is null or refers to an uploaded file.

        Gradio would download a path that is a URL, and copy any other file of the machine.
        """
        try:
            left: list[Any] = [json.loads(body)]
        except (ValueError, RecursionError):
            return False
        while left:
            value = left.pop()
            if isinstance(value, dict):
                path, url = value.get("path"), value.get("url")
                if path is not None and not self.uploads.holds(path):
                    return False
                if url is not None and not self._is_uploads_url(url, headers):
                    return False
                left.extend(value.values())
            elif isinstance(value, list):
                left.extend(value)
        return True

    def _is_uploads_url(self, url: Any, headers) -> bool:
        if not isinstance(url, str) or not is_own_origin(url, headers):
            return False
        return self.uploads.holds(unquote(urlsplit(url).path.partition(FILE)[2]))
