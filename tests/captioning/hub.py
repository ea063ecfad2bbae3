"""A server that answers huggingface_hub about one data set, `owner/birds`."""

import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

API, FILE = "/api/datasets/owner/birds", "/datasets/owner/birds/resolve/main/"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        path, files = unquote(urlsplit(self.path).path), self.server.files
        if path.startswith(f"{API}/tree/main"):
            self.answer(json.dumps(self.tree(path[len(f"{API}/tree/main/") :])).encode())
        elif path.startswith(API):
            self.answer(json.dumps({"id": "owner/birds", "sha": "0" * 40}).encode())
        elif path.startswith(FILE) and path[len(FILE) :] in files:
            self.answer(files[path[len(FILE) :]])
        else:
            self.answer(b"{}", 404)

    def tree(self, folder):
        """The entries of a folder, or with recursive=true of all within it."""
        inside = f"{folder}/" if folder else ""
        found = {}
        for name, data in self.server.files.items():
            *above, _ = name[len(inside) :].split("/") if name.startswith(inside) else [""]
            for depth in range(1, len(above) + 1):
                path = inside + "/".join(above[:depth])
                found[path] = {"type": "directory", "path": path, "oid": "1" * 40, "size": 0}
            digest = hashlib.sha1(data).hexdigest()
            found[name] = {"type": "file", "path": name, "oid": digest, "size": len(data)}
        deepest = 99 if "recursive=true" in self.path.lower() else inside.count("/")
        return [
            entry
            for path, entry in found.items()
            if path.startswith(inside) and path.count("/") <= deepest
        ]

    def answer(self, data, status=200):
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        self.send_response(206 if span and status == 200 else status)
        if span:
            first, last = map(int, span.groups())
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
            data = data[first : last + 1]
        if status == 404:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving(files):
    """Run a server of {name: bytes} within the block, and return its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.files = files
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
