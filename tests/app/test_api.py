"""The API of a running page: gradio_client, curl, concurrent callers, attackers."""

import concurrent.futures
import json
import re
import shutil
import socket
import subprocess
import sys

import pytest

gradio_client = pytest.importorskip("gradio_client", reason="no Gradio")
httpx = pytest.importorskip("httpx")

API = "/gradio_api"
CALL = f"{API}/call/v2/caption"
MULTIPART = "multipart/form-data; boundary=b"
PART = b"--b\r\nContent-Disposition: form-data; %s\r\n\r\nabc\r\n--b--\r\n"
FIELDS = [b'name="files"; filename="a"', b'name="files"', b"", b'name="\xff"; filename=""']
VALUES = [
    *(0, -1, 1.5, 10**30, 10**400, float("nan"), float("inf"), True, None, {"a": 1}, [[1], None]),
    *("", "\0", "\ud800", "a" * 100_000, "{{7*7}}", "../../x", "SMILE"),
]
SETTINGS = (
    "photo",
    "num_beams",
    "max_length",
    "seed",
    "prompt",
    "checkpoints",
    "top_p",
    "sample",
    "x",
)
pytestmark = pytest.mark.slow  # they need the server, whose start takes seconds


def predict(server, path, **settings):
    client = gradio_client.Client(server, verbose=False)
    photo = path and gradio_client.handle_file(str(path))
    return client.predict(photo=photo, api_name="/caption", **settings)


def test_every_checkpoint_answers_a_seed_repeats_and_a_mistake_is_one_line(server, files, service):
    found = predict(server, files / "photo.jpg", num_beams=1)
    assert [entry["label"] for entry in found] == [c.label for c in service.checkpoints]
    assert {(r["settings"]["num_beams"], r["settings"]["min_length"]) for r in found} == {(1, 8)}
    sampled = {"checkpoints": ["SMILE"], "sample": True, "temperature": 3, "prompt": "a large"}
    first, second, third = (predict(server, files / "other.png", **sampled, seed=s) for s in "556")
    assert first == second != third and first[0]["settings"]["prompt"] == "a large"
    for name, line in {"huge.png": "6000 x 4000 pixels", "": "no photo was uploaded"}.items():
        assert line in predict(server, name and files / name)["error"]


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="no curl, or no jq")
def test_the_documented_commands_work(server, files, repository):
    text = (repository / "docs" / "app.md").read_text().replace("http://127.0.0.1:7860", server)
    blocks = re.findall(r"```(python|bash)\n(.*?)```", text, re.DOTALL)
    options = {"cwd": files, "capture_output": True, "text": True, "timeout": 60}
    for kind, program in (("python", [sys.executable, "-c"]), ("bash", ["bash", "-ec"])):
        command = next(code for name, code in blocks if name == kind and "photo.jpg" in code)
        result = subprocess.run([*program, command], **options, check=True)
        assert len(re.findall("image.: .photo.jpg.", result.stdout)) == 3


def test_concurrent_callers_get_their_own_answers(server, files):
    names = ["photo.jpg", "other.png", "cut.jpg"] * 4

    def answer(number):
        found = predict(server, files / names[number])
        return found.keys() if number % 3 == 2 else [(r["image"], r["caption"]) for r in found]

    alone = [answer(number) for number in range(3)]
    with concurrent.futures.ThreadPoolExecutor(12) as threads:
        assert list(threads.map(answer, range(12))) == alone * 4 and alone[2] == {"error"}


def test_hostile_calls_are_never_500_read_no_file_and_fetch_no_address(server, files, tmp_path):
    shutil.copy(files / "photo.jpg", tmp_path / "outside.jpg")
    photo, client = (files / "photo.jpg").read_bytes(), httpx.Client(base_url=server, timeout=60)
    answers = []

    def post(route, content=None, kind="application/json", **uploads):
        content = json.dumps(content).encode() if isinstance(content, dict) else content
        headers = {} if uploads else {"content-type": kind}
        answers.append(client.post(route, content=content, headers=headers, files=uploads or None))
        return answers[-1]

    def error(path, **more):
        started = post(CALL, {"photo": {"path": path, **more}})
        event = f"{CALL}/{started.json().get('event_id')}"
        return (client.get(event) if started.status_code == 200 else started).text

    with socket.create_server(("127.0.0.1", 0)) as foreign:
        foreign.setblocking(False)
        address = "{}:{}/a.png".format(*foreign.getsockname())
        others = [f"{scheme}//{address}" for scheme in ("http:", "HTTP:", "ftp:", "")]
        for name in (*others, others[0].replace(":", "%3A"), f"/{others[0]}"):
            for route in ("/file=", f"{API}/file=", f"{API}/file/", "/%67radio_api/file="):
                assert client.get(f"{route}{name}").status_code >= 400
        for path in (*others, f"{tmp_path}/outside.jpg", f"file://{tmp_path}/outside.jpg", "\0"):
            assert '"error":' in error(path) and '"error":' in error(path, url=others[0])
        with pytest.raises(BlockingIOError):
            foreign.accept()
    for name in ("../../up.png", "x" * 400 + ".png", "a.svg", "a.jpg"):
        (path,) = post(f"{API}/upload", files=(name, photo)).json()
    assert post(f"{API}/upload", files=("a.png", photo + bytes(2 << 20))).status_code == 413
    for field in FIELDS:
        for kind in (MULTIPART, ""):
            post(f"{API}/upload?upload_id=a", PART % field, kind)
    call = {"data": [{"path": path}], "fn_index": 1, "session_hash": "s"}
    for value in VALUES:
        for name in SETTINGS:
            post(CALL, {"photo": {"path": path}, name: value})
        for name in ("data", "fn_index", "session_hash", "trigger_id", "event_data"):
            post(f"{API}/queue/join", {**call, name: value})
    statuses = {answer.status_code for answer in answers}
    assert len(answers) > 250
    assert {200, 400} <= statuses <= {200, 400, 413, 422, 503}


def test_hosts_headers_and_fields_that_are_no_files(server):
    for host in ("localhost:7860", "page.example", "127.0.0.1"):
        answer = httpx.get(server, headers={"Host": host})
        assert answer.status_code == 200
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert re.findall(r"<(?:link|script)[^>]*https?://[^>]*>", answer.text) == []
    for host in ("evil.example", "localhost.evil.example", "", "127.0.0.2"):
        assert httpx.get(server, headers={"Host": host}).status_code == 400
    kind = {"content-type": MULTIPART}
    answer = httpx.post(f"{server}{API}/upload", content=PART % FIELDS[1], headers=kind)
    assert (answer.status_code, answer.text) == (400, "an upload has only files")


@pytest.fixture(scope="module")
def visitor(start_page):
    """Return a client of a page with a token and 2 waiting callers, behind a proxy with https."""
    headers = {"Host": "page.example", "X-Forwarded-Proto": "https"}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("APP_TOKEN", "s3cret")
        with start_page("--root-path", "/smile", "--queue", "2") as address:
            client = httpx.Client(base_url=address, headers=headers, timeout=60)
            login = {"username": "anyone", "password": "s3cret"}
            client.cookies = client.post("/login", data=login).cookies
            yield client


def test_a_token_is_the_password(visitor):
    stranger = httpx.Client(base_url=visitor.base_url)
    for path in ("/config", f"{API}/info", f"{API}/file=/etc/hostname", f"{API}/queue/data"):
        assert stranger.get(path).status_code == 401
        assert visitor.get(path).status_code != 401
    call = {"data": [None], "fn_index": 1, "session_hash": "s"}
    assert stranger.post(f"{API}/queue/join", json=call).status_code == 401
    login = {"username": "anyone", "password": "s3cre"}
    assert stranger.post("/login", data=login).status_code == 400
    assert "s3cret" not in stranger.get("/").text + visitor.get("/config").text


def test_a_page_under_a_path_names_its_files_there_and_a_full_queue_refuses_callers(visitor, files):
    """Two callers may wait while a slow call is computed."""
    config, root = visitor.get("/config").json(), "https://page.example/smile"
    (examples,) = (c["props"] for c in config["components"] if c["type"] == "dataset")
    assert config["root"] == root
    assert examples["samples"][0][0]["url"].startswith(f"{root}/gradio_api/file=")
    photo = ("a.jpg", (files / "photo.jpg").read_bytes())
    (path,) = visitor.post(f"{API}/upload", files={"files": photo}).json()
    slow = {"photo": {"path": path}, "num_beams": 10, "min_length": 100, "max_length": 110}
    answers = [visitor.post(CALL, json=slow) for _ in range(12)]
    assert {answer.status_code for answer in answers} == {200, 503}
