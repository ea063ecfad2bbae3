"""Hostile calls to the page's API: none may be answered with 500, or read a file of the server.

python -m tests.app.fuzz http://127.0.0.1:7860 300
"""

import collections
import io
import json
import random
import sys
import tempfile
from pathlib import Path

import httpx
from PIL import Image

API = "/gradio_api"
META = {"_type": "gradio.FileData"}
NUMBERS = [0, -1, 1.5, 10**30, 10**400, float("nan"), float("inf"), 2**63, True]
TEXTS = ["", " ", "\0", "\ud800", "a" * 100_000, "{{7*7}}", "../../x", "ü" * 300, "SMILE"]
SETTINGS = ["num_beams", "max_length", "seed", "prompt", "checkpoints", "top_p", "sample", "x"]
BODIES = [
    b"",
    b"{",
    b"[" * 900_000,
    b"\xff\xfe{}",
    b"null",
    b'{"data": [' + b"[" * 800,
    b"1" * 9999,
]
PART = b"--b\r\nContent-Disposition: form-data; %s\r\n\r\nabc\r\n--b--\r\n"
FIELDS = [b'name="files"; filename="a"', b'name="files"', b"", b'name="\xff"; filename=""']
TYPES = ["application/json", "multipart/form-data; boundary=b", "", "text/x"]


def image(kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.radial_gradient("L").convert("RGB").save(file, kind)
    return file.getvalue()


PHOTOS = {
    **{"cut.jpg": image("JPEG")[:700], "notes.jpg": b"no photo at all", "empty.png": b""},
    **{"../../up.png": image(), "x" * 400 + ".png": image(), "large.png": image() + bytes(2 << 20)},
    "a.svg": b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
}


class Fuzz:
    """Sends random calls to a page. outside: an image file of the server."""

    def __init__(self, address: str, seed: int, outside: Path):
        self.client = httpx.Client(base_url=address, timeout=60)
        self.choose = random.Random(seed).choice
        self.outside, self.statuses = outside, collections.Counter()
        self.uploads = [self.post("/upload", files={"files": ("a.png", image())}).json()[0]]

    def post(self, route: str, **content) -> httpx.Response:
        """Send a request and check the answer's status."""
        answer = self.client.post(API + route, **content)
        self.statuses[answer.status_code] += 1
        assert answer.status_code < 500 or answer.status_code == 503, (route, content, answer.text)
        return answer

    def value(self, depth: int = 0):
        """Return a random JSON value."""
        inner = [] if depth > 2 else [[self.value(depth + 1)] * 2, {"path": self.value(depth + 1)}]
        scalars = [self.choose(NUMBERS), self.choose(TEXTS), None, 5]
        return self.choose([*scalars, *scalars, {"a": 1}, *inner])

    def photo(self):
        """Return an uploaded file, what claims to be one, or another value."""
        upload = self.choose(self.uploads)
        folder = str(Path(upload).parent)
        paths = [
            *(folder, f"{folder}/../../../../../../..{self.outside}", str(self.outside), "a.png"),
            *("/etc/passwd", "file:///etc/passwd", "\0", "x" * 5000, "/proc/self/environ"),
            *("http://127.0.0.1:9/a.png", "//127.0.0.1:9/a.png", "data:image/png;base64,AAAA"),
        ]
        file = {"path": self.choose([upload, self.choose(paths)]), "meta": META}
        more = [{"url": "http://127.0.0.1:9/"}, {"size": "big"}, {"is_stream": 1}, {"meta": 3}, {}]
        return self.choose([{**file, **self.choose(more)}, self.value()])

    def call_by_name(self) -> None:
        """Call the API. The answer has captions, if the photo was uploaded, or it is one line."""
        photo = self.photo()
        started = self.send("/call/v2/caption", {"photo": photo, **self.setting()})
        if started.status_code == 200:
            event = started.json()["event_id"]
            text = self.client.get(f"{API}/call/v2/caption/{event}").text
            assert text.startswith("event: complete\ndata: "), (photo, text)
            (answer,) = json.loads(text.split("\n")[1].removeprefix("data: "))
            is_line = isinstance(answer, dict) and "\n" not in answer["error"]
            assert is_line or photo["path"] in self.uploads, (photo, answer)

    def call_by_number(self) -> None:
        """Call a function of the page, as the browser does."""
        body = {"fn_index": self.choose([0, 1, 1, 2, 3, 4, "0", -1, 99, None, 1.5])}
        body["data"] = self.choose([[self.photo(), *self.setting().values()], [[self.photo()]]])
        body["session_hash"] = self.choose(["s", "\0", 5, "t"])
        body[self.choose(["trigger_id", "event_data"])] = self.value()
        self.send("/queue/join", body)

    def setting(self) -> dict:
        return {self.choose(SETTINGS): self.value()}

    def send(self, route: str, body) -> httpx.Response:
        kind = self.choose(["application/json"] * 9 + ["text/plain"])
        return self.post(route, content=json.dumps(body).encode(), headers={"content-type": kind})

    def malformed(self) -> None:
        """Send a body that is no call and no upload."""
        route = self.choose(["/queue/join", "/call/v2/caption", "/upload", "/upload?upload_id=a"])
        content = self.choose([*BODIES, PART % self.choose(FIELDS)])
        self.post(route, content=content, headers={"content-type": self.choose(TYPES)})

    def upload(self) -> None:
        name = self.choose(list(PHOTOS))
        answer = self.post("/upload", files={"files": (name, PHOTOS[name])})
        self.uploads += answer.json() if answer.status_code == 200 else []

    def run(self, requests: int) -> None:
        kinds = [self.call_by_name, self.call_by_name, self.call_by_number]
        for _ in range(requests):
            self.choose([*kinds, self.malformed, self.upload])()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        outside = Path(folder, "outside.png")
        outside.write_bytes(image())
        fuzz = Fuzz(sys.argv[1], 0, outside)
        fuzz.run(int(sys.argv[2]))
        print(f"{sys.argv[2]} calls; answers by status: {dict(fuzz.statuses)}")
