"""A static host of a built page, which sends no headers for threads."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from mimetypes import guess_type
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Host:
    """Serves the page in `folder` under any path of one part, such as /whole/.

    changes: for a path such as "whole/page.js", what is sent instead of the file; None: nothing.
    """

    def __init__(self, folder: Path):
        self.folder, self.changes = folder, {}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler):
                self._answer(handler)

            def log_message(self, *arguments):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(handler.path).path).lstrip("/")
        name = path.partition("/")[2] or "index.html"
        file = self.folder / name
        content = self.changes.get(path, file.read_bytes() if file.is_file() else None)
        handler.send_response(404 if content is None else 200)
        handler.send_header("Content-Type", guess_type(file)[0] or "application/octet-stream")
        handler.send_header("Content-Length", str(len(content or b"")))
        handler.end_headers()
        handler.wfile.write(content or b"")

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
