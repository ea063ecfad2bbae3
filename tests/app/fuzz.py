"""Hostile calls to the page's API: none may be answered with 500, or read a file of the server.

python -m tests.app.fuzz http://127.0.0.1:7860 300
"""

import collections
import io
import json
import random
import sys

import httpx
from PIL import Image

API = "/gradio_api"
META = {"_type": "gradio.FileData"}
VALUES = [
    *(0, -1, 1.5, 10**30, 10**400, float("nan"), float("inf"), 2**63, True, None, 5, {"a": 1}),
    *("", "\0", "\ud800", "a" * 100_000, "{{7*7}}", "../../x", "ü" * 300, "SMILE", [[1], None]),
]
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
OTHERS = ["/etc/passwd", "\0", "x" * 5000, "data:image/png;base64,AAAA", "/proc/self/environ"]


def image(kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.radial_gradient("L").convert("RGB").save(file, kind)
    return file.getvalue()


PHOTOS = {
    **{"cut.jpg": image("JPEG")[:700], "notes.jpg": b"no photo at all", "empty.png": b""},
    **{"../../up.png": image(), "x" * 400 + ".png": image(), "large.png": image() + bytes(2 << 20)},
    "a.svg": b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
}


def fuzz(address: str, requests: int, others: list[str]) -> collections.Counter:
    """Send random requests to a page; return how many answers had each status.

    others: addresses, and paths of images of the server.
    """
    client, statuses = httpx.Client(base_url=address + API, timeout=60), collections.Counter()
    choose, others = random.Random(0).choice, [*others, *OTHERS]

    def post(route, **content):
        answer = client.post(route, **content)
        statuses[answer.status_code] += 1
        assert answer.status_code < 500 or answer.status_code == 503, (route, content, answer.text)
        return answer

    def upload(name, photo):
        answer = post("/upload", files={"files": (name, photo)})
        return answer.json() if answer.status_code == 200 else []

    def call(uploads):
        """Call a function by name or, as a browser, by number."""
        file = {"path": choose([choose(uploads), choose(others)]), "meta": META}
        file.update(choose([{"url": others[0]}, {"size": "big"}, {"is_stream": 1}, {"meta": 3}]))
        named = {"photo": choose([file, file, choose(VALUES)]), choose(SETTINGS): choose(VALUES)}
        numbered = {"fn_index": choose([0, 1, 1, 2, 3, 4, "0", -1, 99, None, 1.5])}
        numbered["data"] = choose([list(named.values()), [[file]]])
        numbered["session_hash"] = choose(["s", "\0", 5, "t"])
        numbered[choose(["trigger_id", "event_data"])] = choose(VALUES)
        by_name, by_number = ("/call/v2/caption", named), ("/queue/join", numbered)
        route, body = choose([by_name, by_name, by_number])
        headers = {"content-type": choose(["application/json"] * 9 + ["text/plain"])}
        started = post(route, content=json.dumps(body).encode(), headers=headers)
        if body is named and started.status_code == 200:
            text = client.get(f"{route}/{started.json()['event_id']}").text
            assert text.startswith("event: complete\ndata: "), (body, text)
            (answer,) = json.loads(text.split("\n")[1].removeprefix("data: "))
            is_line = isinstance(answer, dict) and "\n" not in answer["error"]
            assert is_line or named["photo"]["path"] in uploads, (body, answer)

    uploads = upload("a.png", image())
    for _ in range(requests):
        kind = choose(["call", "call", "call", "upload", "malformed"])
        if kind == "call":
            call(uploads)
        elif kind == "upload":
            uploads += upload(*choose(list(PHOTOS.items())))
        else:
            route = choose(["/queue/join", "/call/v2/caption", "/upload", "/upload?upload_id=a"])
            content = choose([*BODIES, PART % choose(FIELDS)])
            post(route, content=content, headers={"content-type": choose(TYPES)})
    return statuses


if __name__ == "__main__":
    statuses = fuzz(sys.argv[1], int(sys.argv[2]), ["http://127.0.0.1:9/a.png"])
    print(f"{sys.argv[2]} calls; answers by status: {dict(statuses)}")
