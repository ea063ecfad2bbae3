"""A server with OpenAI's chat interface that answers as a test wants."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def said(*texts, finish_reason="stop", **fields):
    """Return the answer with these choices. fields: further fields of each message."""
    choices = [
        {"message": {"content": text, **fields}, "finish_reason": finish_reason} for text in texts
    ]
    return 200, {}, json.dumps({"choices": choices})


class Server(ThreadingHTTPServer):
    """answers: to the next requests; then `usual` makes them. asked: the requests so far."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self.answers, self.asked, self.usual = [], [], lambda: said("well")
        self.models = (200, {}, "{}")
        self.over = threading.Event()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.answer(self.server.models)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, dict(self.headers), body))
        answers = self.server.answers
        self.answer(answers.pop(0) if answers else self.server.usual())

    def answer(self, answer):
        self.close_connection = isinstance(answer, str)
        if answer == "hang":
            self.server.over.wait(20)
        elif answer != "close":
            code, headers, text = answer
            self.send_response(code)
            for name, value in {"Content-Length": len(text.encode()), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())


@contextmanager
def serving():
    """Run a server within the block."""
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.over.set()
    server.shutdown()
    thread.join()
    server.server_close()
