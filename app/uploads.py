"""Limits the disk space of uploads and the size of requests; checks which files requests name."""

import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from app.guard import EVENT_ROUTES, FILE_ROUTE, UPLOAD_ROUTE, is_own_origin
from app.photos import Limits

MAX_BODY_BYTES = 1 << 20  # limit for the body of a request that is not an upload
KEEP_FILES_S = 3600  # how long Gradio keeps a file
CLEANUP_INTERVAL_S = 600  # how often Gradio removes older files
NO_ROOM = "this page has no more room for photos: try again in an hour"


class Uploads:
    """The folder of uploads, with limits on the total size and number of its files.

    The total size is limited to two batches of photos, where a batch has as many photos as the tab
    Batch accepts, and each has the largest accepted size. The number of files is limited to 100
    batches. kept_files: files of the page, such as its examples, which are never removed.
    """

    def __init__(self, folder: Path, limits: Limits, kept_files: Iterable[Path] = ()):
        self.folder, self.kept_files = folder.resolve(), {path.resolve() for path in kept_files}
        self.max_bytes = 2 * limits.photos * limits.upload_bytes
        self.max_files = 100 * limits.photos
        self._was_below_limits, self._next_measurement = True, 0.0

    def contains(self, path: Any) -> bool:
        """Whether `path` is absolute and in the folder, after links and `..` are resolved."""
        try:
            return os.path.isabs(path) and Path(path).resolve().is_relative_to(self.folder)
        except (TypeError, ValueError, OSError, RuntimeError):
            return False

    def has_room(self) -> bool:
        """Whether the folder is below its limits. Its files are checked at most once per second."""
        if time.monotonic() >= self._next_measurement:
            sizes = list(self._sizes())
            self._was_below_limits = sum(sizes) < self.max_bytes and len(sizes) < self.max_files
            self._next_measurement = time.monotonic() + 1
        return self._was_below_limits

    def _sizes(self) -> Iterable[int]:
        """Yield the sizes of the files in bytes.

        Also removes files and empty folders so old that Gradio should have removed them.
        """
        expiry_time = time.time() - KEEP_FILES_S - 2 * CLEANUP_INTERVAL_S
        for folder, _, names in os.walk(self.folder, topdown=False):
            for path in (Path(folder, name) for name in names):
                with suppress(FileNotFoundError):
                    status = path.stat()
                    if status.st_ctime < expiry_time and path not in self.kept_files:
                        path.unlink()
                    else:
                        yield status.st_size
            with suppress(OSError):  # for example because the folder is not empty
                if os.stat(folder).st_mtime < expiry_time and folder != str(self.folder):
                    os.rmdir(folder)


class BodyChecks:
    """Middleware that checks the bodies of requests, except those to `exempt_path`.

    exempt_path: the path of the API, whose handler reads a photo and checks its size itself.
    """

    def __init__(self, app, uploads: Uploads, exempt_path: str):
        self.app, self.uploads, self.exempt_path = app, uploads, exempt_path

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http" or scope["path"] == self.exempt_path:
            await self.app(scope, receive, send)
        elif scope["path"] == UPLOAD_ROUTE:
            await self.app(scope, self._limit_upload(receive), send)
        else:
            await self._check_body(scope, receive, send)

    def _limit_upload(self, receive):
        """Wrap `receive`, so that it raises an error if the upload is cut off or there is no room.

        Gradio shows the error to the visitor and removes the partial file.
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
        """Read and check the whole body. Then pass the request to `app`, or answer with an error.

        If the client disconnects while the body is read, there is no answer.
        """
        from starlette.datastructures import Headers
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
        if scope["path"] in EVENT_ROUTES and not self._names_only_uploads(
            body, Headers(scope=scope)
        ):
            error_line = "the file was not uploaded to this page: upload it first"
            app = JSONResponse({"error": error_line}, 400)
        messages = [{"type": "http.request", "body": body}]

        async def replay():
            return messages.pop() if messages else await receive()

        await app(scope, replay, send)

    def _names_only_uploads(self, body: bytes, headers) -> bool:
        """Whether every "path" and "url" in the JSON body is null or refers to an uploaded file.

        Without this check, a visitor could make Gradio download any URL and copy any file of the
        machine.
        """
        try:
            pending = [json.loads(body)]
        except (ValueError, RecursionError):
            return False
        while pending:
            value = pending.pop()
            if isinstance(value, dict):
                path, url = value.get("path"), value.get("url")
                if path is not None and not self.uploads.contains(path):
                    return False
                if url is not None and not self._is_uploads_url(url, headers):
                    return False
                pending.extend(value.values())
            elif isinstance(value, list):
                pending.extend(value)
        return True

    def _is_uploads_url(self, url: Any, headers) -> bool:
        """Whether a URL leads to an uploaded file on this server."""
        if not isinstance(url, str) or not is_own_origin(url, headers):
            return False
        return self.uploads.contains(unquote(urlsplit(url).path.partition(FILE_ROUTE)[2]))
