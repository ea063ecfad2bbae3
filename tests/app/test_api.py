"""The API of a running page: gradio_client, curl, concurrent callers, attackers."""

import concurrent.futures
import re
import shutil
import socket
import subprocess
import sys

import pytest

from tests.app.fuzz import API, META, Fuzz, image

gradio_client = pytest.importorskip("gradio_client", reason="no Gradio")
httpx = pytest.importorskip("httpx")

pytestmark = pytest.mark.slow  # they need the server, whose start takes seconds


@pytest.fixture
def client(server):
    return gradio_client.Client(server, verbose=False)


def predict(client, path, **settings):
    photo = path and gradio_client.handle_file(str(path))
    return client.predict(photo=photo, api_name="/caption", **settings)


def test_every_checkpoint_answers_and_a_mistake_is_one_line(client, files, service):
    found = predict(client, files / "photo.jpg", num_beams=1)
    assert [entry["label"] for entry in found] == [c.label for c in service.checkpoints]
    assert {(r["settings"]["num_beams"], r["settings"]["min_length"]) for r in found} == {(1, 8)}
    sampled = {"checkpoints": ["SMILE"], "sample": True, "temperature": 3, "prompt": "a large"}
    first, second, third = (predict(client, files / "other.png", **sampled, seed=s) for s in "556")
    assert first == second != third and first[0]["settings"]["prompt"] == "a large "
    lines = {"cut.jpg": "cut.jpg: not a readable", "huge.png": "6000 x 4000 pixels", "": "no photo"}
    for name, line in lines.items():
        assert line in predict(client, name and files / name)["error"]
    assert "num_beams: found 99" in predict(client, files / "photo.jpg", num_beams=99)["error"]
    not_uploaded = client.predict(photo=str(files / "photo.jpg"), api_name="/caption")
    assert "no photo was uploaded" in not_uploaded["error"]


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
    clients = [gradio_client.Client(server, verbose=False) for _ in range(6)]

    def answer(number):
        found = predict(clients[number % 6], files / names[number])
        return found.keys() if number % 3 == 2 else [(r["image"], r["caption"]) for r in found]

    alone = [answer(number) for number in range(3)]
    with concurrent.futures.ThreadPoolExecutor(12) as threads:
        assert list(threads.map(answer, range(12))) == alone * 4 and alone[2] == {"error"}


def test_hostile_calls_are_never_500_and_read_no_file(server, tmp_path):
    (tmp_path / "outside.png").write_bytes(image())
    fuzz = Fuzz(server, 0, tmp_path / "outside.png")
    fuzz.run(60)
    assert fuzz.statuses[200] > 20 and fuzz.statuses[400] > 5


def test_no_route_and_no_call_fetches_an_address(server):
    routes = ("file=", f"{API}/file=", f"{API}/file/", "%67radio_api/file=", f"{API}/proxy=")
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        foreign.setblocking(False)
        host = "{}:{}".format(*foreign.getsockname())
        for scheme in ("http://", "HTTP://", "ftp://", "//"):
            address = f"{scheme}{host}/private.png"
            for route in routes:
                for name in (address, address.replace(":", "%3A"), f"/{address}"):
                    path = f"{route}{name}".lstrip("/")
                    assert httpx.get(f"{server}/{path}").status_code >= 400
            file = {"path": address, "url": address, "meta": META}
            for function in range(5):
                call = {"data": [file, [file]], "fn_index": function, "session_hash": "s"}
                httpx.post(f"{server}{API}/queue/join", json=call)
            started = httpx.post(f"{server}{API}/call/v2/caption", json={"photo": file}).json()
            answer = httpx.get(f"{server}{API}/call/v2/caption/{started['event_id']}").text
            assert "no photo was uploaded" in answer
        with pytest.raises(BlockingIOError):
            foreign.accept()


def test_hosts_headers_and_fields_that_are_no_files(server):
    for host in ("localhost:7860", "page.example", "127.0.0.1"):
        answer = httpx.get(server, headers={"Host": host})
        assert answer.status_code == 200
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert re.findall(r"<(?:link|script)[^>]*https?://[^>]*>", answer.text) == []
    for host in ("evil.example", "localhost.evil.example", "", "127.0.0.2"):
        assert httpx.get(server, headers={"Host": host}).status_code == 400
    part = b'--b\r\nContent-Disposition: form-data; name="files"\r\n\r\nabc\r\n--b--\r\n'
    kind = {"content-type": "multipart/form-data; boundary=b"}
    answer = httpx.post(f"{server}{API}/upload?upload_id=a", content=part, headers=kind)
    assert (answer.status_code, answer.text) == (400, "an upload has only files")


@pytest.fixture(scope="module")
def public(start_page):
    """Return the address of a page with a token, of 2 waiting callers, for a proxy."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("APP_TOKEN", "s3cret")
        with start_page("--root-path", "/smile", "--queue", "2") as server:
            yield server


@pytest.fixture
def visitor(public):
    """Return an HTTP client that has logged in, as through a proxy that ends https."""
    headers = {"Host": "page.example", "X-Forwarded-Proto": "https"}
    with httpx.Client(base_url=public, headers=headers, timeout=60) as client:
        login = {"username": "anyone", "password": "s3cret"}
        client.cookies = client.post("/login", data=login).cookies
        yield client


def test_a_token_is_the_password(public, visitor):
    for path in ("/config", f"{API}/info", f"{API}/file=/etc/hostname", f"{API}/queue/data"):
        assert httpx.get(public + path).status_code == 401
        assert visitor.get(path).status_code != 401
    call = {"data": [None], "fn_index": 1, "session_hash": "s"}
    assert httpx.post(f"{public}{API}/queue/join", json=call).status_code == 401
    login = {"username": "anyone", "password": "s3cre"}
    assert httpx.post(f"{public}/login", data=login).status_code == 400
    assert "s3cret" not in httpx.get(public).text + visitor.get("/config").text


def test_a_page_under_a_path_names_its_files_there(visitor):
    config = visitor.get("/config").json()
    assert config["root"] == "https://page.example/smile"
    (examples,) = (c["props"] for c in config["components"] if c["type"] == "dataset")
    assert examples["samples"][0][0]["url"].startswith(
        "https://page.example/smile/gradio_api/file="
    )


def test_a_full_queue_refuses_callers(visitor):
    """Two may wait while a slow call is computed."""
    (path,) = visitor.post(f"{API}/upload", files={"files": ("a.png", image())}).json()
    slow = {"photo": {"path": path}, "num_beams": 10, "min_length": 100, "max_length": 110}
    answers = [visitor.post(f"{API}/call/v2/caption", json=slow) for _ in range(12)]
    assert {answer.status_code for answer in answers} == {200, 503}
