"""An S3 server on this machine, moto's, that fails when it is told to."""

import threading
import time
from collections import Counter
from typing import Any, Callable

from captioning.files import store_requests, stores

PAUSE_S = 0.01  # before the first retry
ERROR = b"<Error><Code>%s</Code><Message>told to fail</Message></Error>"


class FaultyStore:
    """faults: names of what befalls each of the next requests for objects, the first one first.

    refuses: whether a request, by its method and path, is not allowed. variables: the environment
    of its users.
    """

    def __init__(self):
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        self.faults: list[str] = []
        self.refuses: Callable[[str, str], bool] = lambda method, path: False
        self.requests: Counter[str] = Counter()  # by method
        self.files: Any = None
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self.variables = {
            "AWS_ACCESS_KEY_ID": "K3Y1D",
            "AWS_SECRET_ACCESS_KEY": "S3CR3T",
            "AWS_ENDPOINT_URL": self.address,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",  # retries are the program's, without botocore's pauses
        }
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _answer(self, environ, start_response):
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        of_object = path.count("/") > 1
        self.requests[method] += 1
        fault = self.faults.pop(0) if of_object and self.faults else "none"
        if of_object and self.refuses(method, path):
            fault = "refused"
        if fault in REFUSALS:
            status, code = REFUSALS[fault]
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response(status, [("Content-Type", "application/xml"), ("Connection", "close")])
            # After HEAD a client may take a body for the beginning of the next answer.
            return [] if method == "HEAD" else [ERROR % code]
        if fault == "slow":
            time.sleep(0.3)
        answer = self._moto(environ, start_response)
        if fault == "broken":  # less than its Content-Length, then the end of the connection
            answer = [b"".join(answer)[:10]]
        return answer

    def close(self):
        self._server.shutdown()


def quick_retries(rank: int) -> None:
    """A hook of `tests.processes`: retry requests without long pauses, as the fixture s3 does."""
    import s3fs

    store_requests.PAUSE_S = PAUSE_S
    s3fs.S3FileSystem.retries = 1


def stamps(folder: str) -> dict[str, stores.Stamp]:
    """Return {relative name: stamp} of the files in a store's folder and its subfolders."""
    return {name[len(folder) + 1 :]: stamp for name, stamp in stores.stamps(folder).items()}


REFUSALS = {
    "500": ("500 Internal Server Error", b"InternalError"),
    "throttled": ("503 Slow Down", b"SlowDown"),
    "refused": ("403 Forbidden", b"AccessDenied"),
}
FAULTS = ("500", "throttled", "broken", "slow")
