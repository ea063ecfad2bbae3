"""The API over HTTP."""

import asyncio
import contextlib
import json
import re
import shutil
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import ClassVar

import pytest
from PIL import Image

from app.photos import Limits
from app.server import CONTENT_SECURITY_POLICY
from decoding import DecodingSettings
from tests.app.client import ask, caption

httpx = pytest.importorskip("httpx", reason="no Gradio, which brings httpx")


@pytest.mark.slow
def test_every_checkpoint_answers(server, files, service):
    status, found = caption(server, files / "photo.jpg", num_beams=1)
    assert status == 200
    assert [entry["label"] for entry in found] == [c.label for c in service.checkpoints]
    for entry in found:
        assert entry["settings"]["num_beams"] == 1 and entry["settings"]["min_length"] == 8
        assert " ".join(word["word"] for word in entry["words"]) == entry["caption"]
        assert all(0 < word["probability"] <= 1 for word in entry["words"])


@pytest.mark.slow
def test_checkpoints_can_be_chosen_and_samples_repeated(server, files):
    given = {"checkpoint": ["MLE", "SMILE"], "sample": True, "temperature": 3, "seed": 5}
    first, second = (caption(server, files / "other.png", **given) for _ in range(2))
    assert first == second and [entry["label"] for entry in first[1]] == ["MLE", "SMILE"]
    assert first != caption(server, files / "other.png", **{**given, "seed": 6})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings", "status", "message"),
    [
        ("cut.jpg", {}, 400, "the photo: not a readable image"),
        ("heavy.jpg", {}, 413, "the photo: above 1 MB"),
        ("photo.jpg", {"num_beams": 99}, 400, "num_beams: found '99'"),
        ("photo.jpg", {"seed": 5}, 400, "seed has no effect"),
    ],
)
def test_refusals_are_one_line(server, files, name, settings, status, message):
    found, answer = caption(server, files / name, **settings)
    assert found == status
    assert list(answer) == ["error"] and message in answer["error"]
    assert "\n" not in answer["error"]


def test_a_full_queue_refuses_callers(files):
    applications = pytest.importorskip("starlette.applications", reason="no Gradio")
    from app import api
    from app.uploads import Uploads

    busy = threading.Event()

    class Slow:
        config = SimpleNamespace(decoding_settings=DecodingSettings)
        checkpoints: ClassVar = [SimpleNamespace(label="A", config=config)]
        limits = Limits(queue=1)

        def caption_file(self, *_):
            busy.wait(60)
            return None, [SimpleNamespace(record=lambda: {"caption": "a dog"})]

    server = applications.Starlette()
    answer = api.CaptionApi(Slow(), Uploads(files, Slow.limits)).answer
    server.add_route(api.PATH, answer, methods=["POST"])

    async def three_ask():
        transport = httpx.ASGITransport(server)
        async with httpx.AsyncClient(transport=transport, base_url="http://page") as client:
            # One is at work, one is waiting.
            asked = [asyncio.create_task(client.post("/api/caption")) for _ in range(2)]
            await asyncio.sleep(0)
            third = await client.post("/api/caption")
            busy.set()
            return [(await task).status_code for task in asked], third.status_code

    assert asyncio.run(three_ask()) == ([200, 200], 503)


@pytest.mark.slow
def test_slow_callers_take_no_place_in_the_queue(server, files):
    """There are more slow callers than places; each has sent one byte of a photo."""
    host, port = server.removeprefix("http://").split(":")
    head = f"POST /api/caption HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1000\r\n\r\nx"
    with contextlib.ExitStack() as stack:
        for _ in range(22):
            caller = socket.create_connection((host, int(port)), timeout=60)
            stack.enter_context(caller).sendall(head.encode())
        time.sleep(0.2)
        assert caption(server, files / "photo.jpg", num_beams=1)[0] == 200


@pytest.mark.slow
def test_few_large_photos_are_in_memory_at_once(server, tmp_path):
    """Five files of 20 million pixels: a decoded one takes 60 MB, at the peak 140."""
    Image.new("RGBA", (5000, 4000), (200, 30, 40, 128)).save(tmp_path / "large.png")
    assert (tmp_path / "large.png").stat().st_size < 150_000
    assert caption(server, tmp_path / "large.png", num_beams=1)[0] == 200

    def memory():
        return metrics(server)["process_resident_memory_bytes"]

    seen = [memory()]
    with ThreadPoolExecutor(5) as threads:
        call = partial(threads.submit, caption, server, tmp_path / "large.png", num_beams=1)
        asked = [call() for _ in range(5)]
        while not all(call.done() for call in asked):
            seen.append(memory())
    assert [call.result()[0] for call in asked] == [200] * 5
    assert max(seen) - seen[0] < 400e6


@pytest.mark.slow
def test_concurrent_callers_share_a_batch_and_a_bad_photo_fails_alone(server, files):
    names = ["photo.jpg", "other.png", "cut.jpg"] * 4
    alone = {name: caption(server, files / name) for name in names[:3]}
    before = metrics(server)
    with ThreadPoolExecutor(len(names)) as threads:
        found = list(threads.map(lambda name: caption(server, files / name), names))
    for name, (status, answer) in zip(names, found):
        expected, answer_alone = alone[name]
        assert status == expected == (400 if name == "cut.jpg" else 200)
        if status == 200:
            for one, other in zip(answer, answer_alone):
                assert one["caption"] == other["caption"]
                assert one["score"] == pytest.approx(other["score"], abs=1e-4)
    after = metrics(server)

    def more(name):
        return after[name] - before.get(name, 0)

    assert more("smile_requests_total 200") == 8
    assert more("smile_requests_total 400") == 4
    assert more("smile_captions_total") == more("smile_batch_photos_sum") == 8 * 3
    assert 3 <= more("smile_batch_photos_count") < 8 * 3
    assert more("smile_request_seconds_count") == 12
    assert more("smile_batch_seconds_count") == more("smile_batch_photos_count")


def metrics(server):
    """Return the values of GET /metrics by name and label, parsed by prometheus_client."""
    parser = pytest.importorskip("prometheus_client.parser")
    _, headers, body = ask(f"{server}/metrics")
    assert headers["content-type"].startswith("text/plain")
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in parser.text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


@pytest.mark.slow
def test_a_caller_that_hangs_up_is_counted(server, files):
    closed = "smile_requests_total 499"
    before = metrics(server).get(closed, 0)
    body = (files / "photo.jpg").read_bytes()
    host, port = server.removeprefix("http://").split(":")
    head = (
        f"POST /api/caption?num_beams=10&min_length=110&max_length=120 HTTP/1.1\r\nHost: {host}\r\n"
    )
    # Once before the answer, once before the photo is there.
    for cut in (len(body), len(body) // 2):
        with socket.create_connection((host, int(port))) as caller:
            caller.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:cut])
    assert caption(server, files / "photo.jpg")[0] == 200
    until = time.monotonic() + 100
    while metrics(server).get(closed, 0) < before + 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert metrics(server)[closed] == before + 2


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_documented_command_works(server, files, repository):
    text = (repository / "docs" / "app.md").read_text()
    line = re.search(r"^curl .*?(?<!\\)$", text, re.MULTILINE | re.DOTALL)[0]
    assert "http://127.0.0.1:7860" in line and "@photo.jpg" in line
    command = line.replace("http://127.0.0.1:7860", server)
    options = {"cwd": files, "capture_output": True, "text": True, "timeout": 60}
    result = subprocess.run(["bash", "-c", command], **options)
    assert "caption" in json.loads(result.stdout)[0], result.stderr


@pytest.mark.slow
def test_every_answer_has_the_content_security_policy(server):
    page, *others = [ask(f"{server}/{path}") for path in ("", "metrics", "no/such")]
    for status, (found, headers, _) in zip((200, 200, 404), (page, *others)):
        assert found == status
        assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    # The policy does not stop preconnect links.
    assert re.findall(rb"<(?:link|script)[^>]*https?://[^>]*>", page[2]) == []
