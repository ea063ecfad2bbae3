"""A server on this machine that answers as a test wants."""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Optional


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        answer = self.server.answer(self.path, self.headers, body)
        self.close_connection = isinstance(answer, str)
        if answer == "hang":
            self.server.over.wait(20)
        elif answer != "close":
            code, headers, content = answer
            self.send_response(code)
            for name, value in {"Content-Length": len(content), **headers}.items():
                if value is not None:
                    self.send_header(name, str(value))
            self.end_headers()
            with suppress(ConnectionError):  # the client may close the connection early
                self.wfile.write(content if self.command != "HEAD" else b"")

    do_POST = do_HEAD = do_GET

    def log_message(self, *_):
        pass


@contextmanager
def serving(answer: Callable, certificate: Optional[Path] = None) -> Iterator[ThreadingHTTPServer]:
    """Run a server within the block; its address is `url`.

    - answer: maps path, headers and body of a request to status, headers (None leaves one out)
      and body, to "close", which closes the connection, or to "hang", which keeps it open
    - certificate: for https
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.answer, server.over, server.daemon_threads = answer, threading.Event(), True
    server.url = f"http{'s' * bool(certificate)}://127.0.0.1:{server.server_port}"
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.over.set()
    server.shutdown()
    server.server_close()
