"""Serve a folder on this machine: python web/serve.py FOLDER [PORT].

The headers allow WebAssembly to use threads. Port 0 chooses a free port.
"""

import contextlib
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer


class Handler(SimpleHTTPRequestHandler):
    def end_headers(self):
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        self.send_header("Cache-Control", "no-cache")  # ask whether a file has changed
        super().end_headers()

    def copyfile(self, source, outputfile):
        with contextlib.suppress(ConnectionError):  # transformers.js cancels requests for sizes
            super().copyfile(source, outputfile)

    def log_message(self, *arguments):
        pass


if __name__ == "__main__":
    folder, port = sys.argv[1], int((sys.argv[2:] or ["7861"])[0])
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), partial(Handler, directory=folder))
    except OSError as error:
        sys.exit(f"error: port {port}: {error.strerror}; choose another port with PORT=...")
    print(f"open http://127.0.0.1:{server.server_port}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
