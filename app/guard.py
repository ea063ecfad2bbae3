"""Middleware that passes on only what the page and its API need.

Gradio has some seventy further routes, of which some fetch addresses, and its calls may name any
file of the server.
"""

import json
import os
import re

from starlette.requests import Request
from starlette.responses import JSONResponse

ROUTES = re.compile(
    r"/|/(config|favicon\.ico|login|logout|manifest\.json|theme\.css|(assets|static)/.*)|"
    r"/gradio_api/(info|upload|upload_progress|queue/(join|data)|file=/.*|call/v2/caption(/\w+)?)"
)


class Upload(dict):
    """An uploaded file in the body of a call, as Gradio's FileData."""


def guard(app, folder, max_upload):
    """Return an ASGI application that answers refused requests and passes on others to `app`.

    folder: the path of uploads, without links, with a slash at the end. max_upload: the most bytes
    of an upload, which may have several files. Other bodies have at most a MB.
    """

    def only_uploads(value):
        """Return a JSON object. If it is a file: an `Upload`, or None if it was not uploaded."""
        if "path" not in value:
            return value
        path = os.path.realpath(value["path"])
        if path.startswith(folder) and os.path.isfile(path):
            return Upload(path=path, meta={"_type": "gradio.FileData"})

    async def guarded(scope, receive, send):
        if scope["type"] != "http":
            return await app(scope, receive, send)
        request = Request(scope, receive)
        path, headers, error = scope["path"], request.headers, None
        limit = max_upload if path.endswith("/upload") else 1_000_000
        if "origin" in headers and not headers["origin"].endswith("//" + headers["host"]):
            error = 403, "the request comes from a page of another origin"
        elif not ROUTES.fullmatch(path):
            error = 404, "there is no such path; docs/app.md describes the API"
        elif "transfer-encoding" in headers or int(headers.get("content-length", 0)) > limit:
            error = 413, f"the body has to state its length, of at most {limit} bytes"
        elif path.endswith(("/join", "/caption")):
            try:
                call = json.loads(await request.body(), object_hook=only_uploads)
                values, first = call, "photo"
                if "data" in call:
                    values, first = call["data"], 0
                    values += [None] * 50
                # The page's first two functions take a photo first, and calls share a batch: what
                # Gradio cannot validate there, or a missing value, would be an error for all calls.
                if int(call.get("fn_index", 0)) < 2 and not isinstance(values[first], Upload):
                    values[first] = None
                body = json.dumps(call, ensure_ascii=False).encode()
            except Exception:  # the call is refused, whatever is wrong with it
                error = 400, "not a call of this page; docs/app.md describes the API"

            async def receive():
                return {"type": "http.request", "body": body}

        await (JSONResponse({"error": error[1]}, error[0]) if error else app)(scope, receive, send)

    return guarded
