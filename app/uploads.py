"""What requests bring: files that have room on the disk, and nothing that names another server."""

import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.guard import EVENTS, is_own_file
from app.photos import Limits

UPLOAD = "/gradio_api/upload"
MOST = 1 << 20  # bytes of a body that is no file
KEPT_S, LOOK_S = 3600, 600  # how long Gradio keeps a file, and how often it looks for older ones
FULL = "this page has no more room for photos: try again in an hour"


class Uploads:
    """The folder of what visitors upload, and how much of it there may be.

    That is two batches of the heaviest photos, in files 100 batches. own: files of the page.
    """

    def __init__(self, folder: Path, limits: Limits, own: Iterable[Path] = ()):
        self.folder, self.own = folder, set(map(str, own))
        self.bytes = 2 * limits.photos * limits.upload_bytes
        self.files = 100 * limits.photos
        self._room, self._next = True, 0.0

    def has_room(self) -> bool:
        """Whether more may be kept; the folder is looked through once a second at most."""
        if time.monotonic() >= self._next:
            sizes = list(self._sizes())
            self._room = sum(sizes) < self.bytes and len(sizes) < self.files
            self._next = time.monotonic() + 1
        return self._room

    def _sizes(self) -> Iterable[int]:
        """Those of the files. Removes what Gradio has forgotten: uploads that failed, folders."""
        forgotten = time.time() - KEPT_S - 2 * LOOK_S
        for folder, _, names in os.walk(self.folder, topdown=False):
            for path in (os.path.join(folder, name) for name in names):
                with suppress(FileNotFoundError):
                    status = os.stat(path)
                    if status.st_ctime < forgotten and path not in self.own:
                        os.remove(path)
                    else:
                        yield status.st_size
            with suppress(OSError):  # it is not empty
                if os.stat(folder).st_mtime < forgotten and folder != str(self.folder):
                    os.rmdir(folder)


class Bodies:
    """Middleware. files: the path that takes a file as its body, and looks after it itself."""

    def __init__(self, app, uploads: Uploads, files: str):
        self.app, self.uploads, self.files = app, uploads, files

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http" or scope["path"] == self.files:
            await self.app(scope, receive, send)
        elif scope["path"] == UPLOAD:
            await self.app(scope, self._of_upload(receive), send)
        else:
            await self._small(scope, receive, send)

    def _of_upload(self, receive):
        """Gradio removes what it has of an upload if it fails so, and shows the line."""
        from starlette.formparsers import MultiPartException

        async def received():
            message = await receive()
            if message["type"] == "http.disconnect":
                raise MultiPartException("the upload was cut short")
            if not self.uploads.has_room():
                raise MultiPartException(FULL)
            return message

        return received

    async def _small(self, scope, receive, send) -> None:
        """Read the body whole, so that it is known before any other code sees it."""
        from starlette.datastructures import Headers
        from starlette.responses import JSONResponse

        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return
            body, more = body + message.get("body", b""), message.get("more_body", False)
            if len(body) > MOST:
                await JSONResponse({"error": f"a body above {MOST} bytes"}, 413)(
                    scope, receive, send
                )
                return
        if scope["path"] in EVENTS and not names_own_files(body, Headers(scope=scope)):
            line = "a file that was not uploaded to this page: upload it first"
            await JSONResponse({"error": line}, 400)(scope, receive, send)
            return
        unread = [{"type": "http.request", "body": body}]

        async def again():
            return unread.pop() if unread else await receive()

        await self.app(scope, again, send)


def names_own_files(body: bytes, headers) -> bool:
    """Whether each "path" and "url" within the JSON is of a file of this page, or nothing."""
    try:
        left: list[Any] = [json.loads(body)]
    except (ValueError, RecursionError):
        return False
    while left:
        value = left.pop()
        if isinstance(value, dict):
            files = (value.get("path"), value.get("url"))
            if not all(file is None or is_own_file(file, headers) for file in files):
                return False
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
    return True
