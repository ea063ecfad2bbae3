"""The API for programs: one photo in, captions out as JSON."""

import tempfile
import threading
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from app.options import Options, defaults_of, read_options
from app.photos import read_photo
from app.service import CaptionService
from captioning.runtime.errors import UserError

NAME = "the photo"  # in errors: a request's body has no name


def add_api(server: FastAPI, service: CaptionService) -> None:
    """POST /api/caption?KEY=VALUE..., whose body is the photo's file.

    The keys are those of `Options`, and `checkpoint`, a label, once or several times. Answers
    [{caption, score, label, checkpoint, settings, words}], or {"error": one line} with the status
    400, 413 for a photo beyond the limits' bytes, 503 where too many wait.
    """
    defaults, limits = defaults_of(service.checkpoints[0]), service.limits
    places = threading.BoundedSemaphore(limits.queue + 1)

    def answer(path: Path, labels: list[str], options: Options) -> list[dict[str, Any]]:
        photo = read_photo(path, NAME, limits)
        return [service.caption(photo, c, options).record() for c in service.chosen(labels)]

    @server.post("/api/caption")
    async def caption(request: Request) -> JSONResponse:
        if not places.acquire(blocking=False):
            return _error("too many are waiting: try again in a while", 503)
        try:
            with tempfile.NamedTemporaryFile() as file:
                size = 0
                async for part in request.stream():
                    size += len(part)
                    if size > limits.upload_bytes:
                        return _error(f"{NAME}: above {limits.upload_mb:g} MB", 413)
                    file.write(part)
                file.flush()
                given = dict(request.query_params)
                labels = request.query_params.getlist("checkpoint")
                given.pop("checkpoint", None)
                labels = labels or [checkpoint.label for checkpoint in service.checkpoints]
                options = read_options({**defaults, **given})
                return JSONResponse(
                    await run_in_threadpool(answer, Path(file.name), labels, options)
                )
        except UserError as error:
            return _error(str(error), 400)
        finally:
            places.release()


def _error(message: str, status: int) -> JSONResponse:
    return JSONResponse({"error": message}, status)
