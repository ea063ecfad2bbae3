"""A served model: the server of the test answers well, badly, late or never."""

import base64
import io
import threading
import time

import pytest
from PIL import Image

from captioning.bulk import served, work
from captioning.bulk.served import KEY_VARIABLE, MAX_SIDE, as_data_url
from captioning.bulk.work import Batch
from captioning.files import chat
from captioning.metrics.itm import ItmScorer
from captioning.runtime import signals
from tests.captioning.bulk.conftest import stopped_after
from tests.captioning.chat_server import said, serving
from tests.programs import one_error_line, unchanged

SECRET = "sk-S3CR3T"
BUSY, CUT = (503, {}, "busy"), {"finish_reason": "length", "reasoning": "Hm"}


@pytest.fixture
def server(monkeypatch, photos, load):
    """Return a server whose caption is the photo's name; faults: earlier answers, by name.

    The last one is repeated. asked: the pairs (name, body) of the requests.
    """
    monkeypatch.setattr(chat, "FIRST_PAUSE_S", 0)
    monkeypatch.setattr(work, "KEEP_S", 0)
    monkeypatch.setenv(KEY_VARIABLE, SECRET)
    names = {as_data_url(str(path)): path.stem for path in photos.rglob("*.png")}

    def answer():
        body = server.asked[-1][2]
        image = body["messages"][0]["content"][0]["image_url"]["url"]
        name = names.get(image, "grey")
        faults = server.faults.get(name, [])
        fault = faults and (faults.pop(0) if len(faults) > 1 else faults[0])
        return fault or said(*[f" a {name},\nit is {i} " for i in range(body.get("n", 1))])

    with serving() as server:
        server.faults, server.usual = {}, answer
        yield server
    assert not load.called


@pytest.fixture
def run(run, server):
    # One request at a time: the server looks at the last one.
    usual = ["num_workers=0", "--url", server.url, "--concurrency", "1"]
    return lambda source, *flags, **named: run(source, *usual, *flags, **named)


def test_photos_are_sent_and_captioned(run, server, photos, checkpoint, tmp_path):
    lines, _ = run(photos, "--prefix", "see ", "max_length=30", "--prompt", "What?")
    paths = sorted(photos.rglob("*.png"))
    settings = {"prompt": "What?", "max_tokens": 30, "temperature": 0}
    for path, line in zip(paths, sorted(lines, key=lambda line: line["image"])):
        assert line["caption"] == f"see a {path.stem}, it is 0" and line["image"] == str(path)
        assert (line["checkpoint"], line["settings"]) == (str(checkpoint), settings)
    path, headers, body = server.asked[1]  # the first one is of the grey image
    assert path == "/v1/chat/completions" and headers["Authorization"] == f"Bearer {SECRET}"
    image, text = body.pop("messages")[0]["content"]
    assert image["image_url"]["url"] == as_data_url(str(paths[0]))
    assert text == {"type": "text", "text": "What?"}
    assert body == {"model": str(checkpoint), "max_tokens": 30, "temperature": 0}
    assert SECRET not in "".join(path.read_text() for path in (tmp_path / "out").glob("c*"))
    assert len(run(photos)[0]) == 10 and len(server.asked) == 11  # nothing is requested


def test_sampling_fields_and_columns_are_sent_with_a_seed_per_image(run, server, photos):
    rows = [f"{path.name},{n}\n" for n, path in enumerate(sorted(photos.glob("*.png")))]
    (photos / "list.csv").write_text("".join(["image,title\n", *rows]))
    wanted = {"temperature": 0.5, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.2}
    given = ["sample=true", "--num_return", "2", *(f"{key}={wanted[key]}" for key in wanted)]
    given += ["--prompt", "It is {title}.", "--existing", "overwrite"]
    wanted.update(n=2, max_tokens=256)
    server.faults["scene_000001"] = [said("a star", "a disc", **CUT)]

    def bodies(*more):
        server.asked.clear()
        lines, _ = run(photos / "list.csv", *given, *more)
        assert all(len(line["captions"]) == 2 for line in lines)
        assert [line["cuts"] for line in lines if "cut" in line] == [[True, True]]
        return [body for _, _, body in server.asked[1:]]

    first, again, other = bodies(), bodies(), bodies("seed=7")
    assert first == again and all(wanted.items() <= body.items() for body in first)
    texts = {body["messages"][0]["content"][1]["text"] for body in first}
    assert texts == {f"It is {n}." for n in range(9)}
    seeds = {body["seed"] for body in [*first, *other]}
    assert len(seeds) == 18 and all(0 <= seed < 2**31 for seed in seeds)


def test_the_concurrency_is_used_and_not_exceeded(run, server, photos):
    """The server answers only once four requests are there."""
    together, now, most = threading.Barrier(4), [], []

    def answer():
        if len(server.asked) > 1:  # the first one is of the grey image
            now.append(1)
            most.append(len(now))
            together.wait(100)
            time.sleep(0.2)
            now.pop()
        return said("a photo")

    server.usual = answer
    for path in sorted(photos.glob("*.png"))[:2]:
        path.unlink()
    lines, _ = run(photos, "--shard_size", "1", "--concurrency", "4")
    assert len(lines) == 8 and max(most) == 4


def test_images_that_fail_do_not_end_the_run_and_cut_captions_are_marked(
    run, server, photos, failed, itm_checkpoint
):
    (photos / "broken.png").write_bytes(b"no image")
    faults = {
        "scene_000001": ((400, {}, "cannot identify image"), "400 cannot identify image"),
        "scene_000002": ((500, {}, "crash"), "500 crash, after 5 tries"),
        "scene_000003": (said(None), "the answer has 0 of 1 captions"),
        "scene_000004": (said("<think>Is", **CUT), "has 0 of 1 captions: raise max_length"),
    }
    server.faults = {name: [fault] for name, (fault, _) in faults.items()}
    cut = said("<think>A disc?</think> a star", **CUT)
    server.faults["scene_000005"] = [*[BUSY] * 5, cut]  # after an outage
    lines, log = run(photos, "--itm_model", itm_checkpoint, "--filter", "itm>0")
    assert len(lines) == 6 and "failed 5" in log
    reasons = failed()
    assert "not a readable image" in reasons.pop("broken.png")
    assert all(reasons[f"{name}.png"].endswith(reason) for name, (_, reason) in faults.items())
    assert [line["caption"] for line in lines if line.get("cut")] == ["a star"]
    scorer = ItmScorer(str(itm_checkpoint))
    for line in lines:  # they take no other photo's score
        score = scorer.scores(scorer.read(line["image"])[None], [[line["caption"]]]).item()
        assert line["itm"] == pytest.approx(score, abs=1e-4)


def test_a_server_that_goes_away_loses_nothing_and_another_continues(run, server, photos):
    server.faults = {"scene_000005": ["close"], "grey": [said("well"), "close"]}
    _, log = run(photos, code=2)
    assert server.url in one_error_line(log, "after 5 tries; run the same command again")
    server.faults.clear()
    assert "the unfinished run has prompt" in run(photos, "--prompt", "Why?", code=2)[1]
    server.asked.clear()
    with stopped_after(1, served.ServedModel):
        assert "stopped by SIGTERM" in run(photos)[1]
    elsewhere = server.url.replace("127.0.0.1", "localhost").replace("/v1", "")  # which is added
    lines, log = run(photos, "--url", elsewhere)
    assert len(lines) == 10 and "continuing" in log
    assert len(server.asked) < 2 + 10  # what had been captioned was not asked again
    assert {path for path, _, _ in server.asked} == {"/v1/chat/completions"}


def test_a_stop_awaits_no_answer_and_cancels_the_requests_that_wait(server, monkeypatch):
    monkeypatch.setattr(served, "STOP_CHECK_S", 0.1)
    model = served.ServedModel("m", server.url, {"prompt": "What?"}, 1, 0)
    server.usual = lambda: time.sleep(0.5) or said("a photo")
    batches = model.prefetch([Batch(0, 0, [{"image": "a"}] * 50, True, ["data:,"] * 50)])
    batch = next(batches)
    monkeypatch.setattr(signals, "stop_requested", lambda: "SIGTERM")
    with pytest.raises(signals.Stopped):
        list(model.captions(batch))
    batches.close()
    time.sleep(1)
    assert len(server.asked) == 2  # the grey image, and the request in flight


@pytest.mark.parametrize(
    ("flags", "reason", "requests"),
    [
        (["num_beams=3"], "num_beams does not apply to a served model", 0),
        (["temperature=0.7"], "temperature has no effect without sample=true", 0),
        (["--num_return", "2"], "--num_return needs sample=true", 0),
        (["--url", "https://me:secret@host/v1"], "--url has to be an address", 0),
        (["sample=true"], "404 no such model", 1),
        (["sample=true", "--num_return", "3"], "got 1 captions instead of 3; use --num_ret", 1),
    ],
)
def test_what_a_server_cannot_do_is_one_line_at_once(
    run, server, photos, tmp_path, flags, reason, requests
):
    answer = said("one") if "--num_return" in flags else (404, {}, "no such model")
    server.faults["grey"] = [answer]
    (tmp_path / "out").mkdir()
    with unchanged(tmp_path):
        _, log = run(photos, *flags, code=2)
    assert "secret" not in one_error_line(log, reason) and len(server.asked) == requests


def test_photos_are_sent_upright_without_metadata_and_shrunk(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (20, 40), (200, 100, 50)).save(tmp_path / "turned.jpg", exif=exif)
    Image.new("RGB", (3 * MAX_SIDE, 300), (200, 100, 50)).save(tmp_path / "large.png")
    for name, size in (("turned.jpg", (40, 20)), ("large.png", (MAX_SIDE, 100))):
        kind, _, content = as_data_url(str(tmp_path / name)).partition(";base64,")
        image = Image.open(io.BytesIO(base64.b64decode(content)), formats=["JPEG"])
        assert kind == "data:image/jpeg" and not image.getexif()
        assert image.size == size
        assert all(abs(a - b) < 4 for a, b in zip(image.getpixel((5, 5)), (200, 100, 50)))
