"""A served model: the server of the test answers well, badly, late or never."""

import base64
import io
import json
import os
import threading

import pytest
from PIL import Image

from captioning.bulk import served
from captioning.bulk.reading import Batch
from captioning.bulk.served import KEY, MAX_SIDE, as_data_url
from captioning.files import chat
from captioning.metrics.itm_model import ItmScorer
from captioning.runtime.errors import UserError
from tests.captioning.bulk.conftest import killed_after, read_lines
from tests.captioning.chat_server import said, serving
from tests.programs import one_error_line, unchanged

SECRET = "sk-very-secret"


def photo_in(body):
    """The bytes and the media type of the photo of a request."""
    url = body["messages"][0]["content"][0]["image_url"]["url"]
    kind, _, text = url.partition(";base64,")
    return base64.b64decode(text), kind


def is_grey(body):
    return photo_in(body)[0] == base64.b64decode(served.GREY.partition(",")[2])


@pytest.fixture
def server(monkeypatch, photos, loaded):
    """Return a server whose caption is the photo's name; faults: earlier answers, by name."""
    monkeypatch.setattr(chat, "FIRST_PAUSE_S", 0)
    monkeypatch.setattr(chat, "TIMEOUT_S", 20)
    monkeypatch.delenv(KEY, raising=False)
    names = {path.read_bytes(): path.stem for path in photos.rglob("*.png")}
    with serving() as server:
        server.faults, taking = {}, threading.Lock()

        def answer():
            with taking:
                body = server.asked[-1][2]
                name = names.get(photo_in(body)[0], "grey")
                faults = server.faults.get(name, [])
                # The last one is repeated.
                fault = faults[0] if len(faults) == 1 else faults.pop(0) if faults else None
            return fault or said(*[f" a {name},\nit is {i} " for i in range(body.get("n", 1))])

        server.usual = answer
        yield server
    assert loaded == []


@pytest.fixture
def run(server, tmp_path, run_program):
    """Return a function that captions an input, and returns the lines and the log."""

    def call(source, *flags, code=0, url=server.url):
        out = tmp_path / "out" / "captions.jsonl"
        given = ["tiny-vlm", str(source), "--out", str(out), "--backend", "openai", "--url", url]
        found, _, log = run_program("captioning.caption", *given, "--num_workers", "0", *flags)
        assert found == code, log
        return (read_lines(out) if code == 0 and out.exists() else []), log

    # One request at a time: the server looks at the last one.
    return lambda *given, **named: call(*given, "--concurrency", "1", **named)


def test_photos_are_sent_unchanged_and_captioned(run, server, photos, tmp_path, monkeypatch):
    monkeypatch.setenv(KEY, SECRET)
    lines, log = run(photos, "--prefix", "see ", "--max_length", "30", "--prompt", "What?")
    paths = sorted(photos.rglob("*.png"))
    assert sorted(line["image"] for line in lines) == sorted(map(str, paths))
    settings = {"prompt": "What?", "max_tokens": 30, "temperature": 0, "num_return_sequences": 1}
    for line in lines:
        assert line["caption"] == f"see a {os.path.basename(line['image'])[:-4]}, it is 0"
        assert (line["checkpoint"], line["settings"]) == ("tiny-vlm", settings)
    path, headers, body = server.asked[1]
    assert path == "/v1/chat/completions" and headers["Authorization"] == f"Bearer {SECRET}"
    assert photo_in(body) == (paths[0].read_bytes(), "data:image/png")
    text = body.pop("messages")[0]["content"][1]
    assert text == {"type": "text", "text": "What?"}
    assert body == {"model": "tiny-vlm", "max_tokens": 30, "temperature": 0}
    assert is_grey(server.asked[0][2]) and len(server.asked) == 11
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert files and SECRET not in log
    assert not any(SECRET.encode() in path.read_bytes() for path in files)
    assert len(run(photos)[0]) == 10 and len(server.asked) == 11  # nothing is requested


def test_sampling_fields_are_sent_with_a_seed_per_image(run, server, photos, tmp_path):
    flags = ["--do_sample", "--temperature", "0.5", "--top_p", "0.9", "--top_k", "20", "--min_p"]
    flags += ["0.1", "--repetition_penalty", "1.2", "--num_return", "2", "--sidecar"]
    lines, _ = run(photos, *flags)
    assert all(len(line["captions"]) == 2 for line in lines)
    assert photos.joinpath(lines[0]["image"]).with_suffix(".txt").exists()
    bodies = [body for _, _, body in server.asked]
    wanted = {"temperature": 0.5, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "n": 2}
    wanted.update(repetition_penalty=1.2, max_tokens=256)
    assert all(wanted.items() <= body.items() for body in bodies)
    seeds = {body["seed"] for body in bodies[1:]}
    assert len(seeds) == 10 and all(0 <= seed < 2**31 for seed in seeds)
    run(photos, *flags, "--existing", "overwrite")
    assert {body["seed"] for _, _, body in server.asked[12:]} == seeds
    run(photos, *flags, "--existing", "overwrite", "--seed", "7")
    assert not {body["seed"] for _, _, body in server.asked[23:]} & seeds


def test_answers_are_filtered(run, server, photos, itm_checkpoint, tmp_path):
    """An answer that fails takes no other photo's score."""
    (photos / "scene_000002a.png").write_bytes(b"no image")
    server.faults["scene_000001"] = [said(None)]
    flags = ["--batch_size", "4", "--itm_model", str(itm_checkpoint), "--filter"]
    lines, log = run(photos, *flags, "itm>0")
    assert len(lines) == 9 and "failed 2" in log
    scorer = ItmScorer(str(itm_checkpoint))
    for line in lines:
        score = scorer.scores([Image.open(line["image"])], [[line["caption"]]]).item()
        assert line["itm"] == pytest.approx(score, abs=1e-4)
    above = sorted(line["itm"] for line in lines)[4]
    kept, _ = run(photos, *flags, f"itm>{above:.5f}", "--existing", "overwrite")
    assert len(kept) == 4 and min(line["itm"] for line in kept) > above
    assert len(read_lines(tmp_path / "out" / "captions.filtered.jsonl")) == 5


@pytest.mark.parametrize("division", ["--batch_size", "--shard_size"])
def test_the_concurrency_is_used_and_not_exceeded(division, server, photos, tmp_path, run_program):
    """The server answers only once four requests are there."""
    together, now, most = threading.Barrier(4), [], []

    def answer():
        if is_grey(server.asked[-1][2]):
            return said("grey")
        now.append(1)
        most.append(len(now))
        together.wait(100)
        now.pop()
        return said("a photo")

    server.usual = answer
    for path in sorted(photos.glob("*.png"))[:2]:
        path.unlink()
    given = ["m", str(photos), "--out", str(tmp_path / "c.jsonl"), "--backend", "openai", "--url"]
    flags = ["--concurrency", "4", division, "1", "--num_workers", "0"]
    assert run_program("captioning.caption", *given, server.url, *flags).code == 0
    assert len(read_lines(tmp_path / "c.jsonl")) == 8 and max(most) == 4


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ((400, {}, "cannot identify image"), "400 cannot identify image"),
        ((500, {}, "crash"), "500 crash, after 5 tries"),
        (said(None), "the answer has no caption"),
        (
            said("<think>Is it", finish_reason="length"),
            "the answer has only thoughts: raise --max_length",
        ),
    ],
)
def test_an_image_that_fails_does_not_end_the_run(run, server, photos, tmp_path, fault, reason):
    (photos / "broken.png").write_bytes(b"no image")
    server.faults["scene_000001"] = [fault]
    lines, log = run(photos)
    assert len(lines) == 9 and "failed 2" in log
    broken, refused = read_lines(tmp_path / "out" / "failed.jsonl")
    assert "broken.png: not a readable image" in broken["error"]
    assert refused["image"].endswith("scene_000001.png")
    assert refused["error"].startswith(refused["image"]) and reason in refused["error"]


def test_captions_that_are_cut_are_marked(run, server, photos):
    thoughts = said("<think>A disc?</think> a star ", finish_reason="length", reasoning="Hm")
    server.faults["scene_000001"] = [thoughts]
    lines, _ = run(photos)
    [cut] = [line for line in lines if "cut" in line]
    assert cut["cut"] is True and cut["caption"] == "a star" and len(lines) == 10


def test_a_server_that_goes_away_loses_nothing(run, server, photos):
    faults = {f"scene_{i:06d}": ["close"] for i in range(5, 10)}
    server.faults.update(faults, grey=[said("well"), *["close"] * 99])
    _, log = run(photos, "--batch_size", "2", code=2)
    line = one_error_line(log, "after 5 tries; run the same command again to continue")
    assert server.url in line
    server.faults.clear()
    before = len(server.asked)
    lines, log = run(photos, "--batch_size", "2")
    assert len(lines) == 10 and "continuing" in log
    assert len(server.asked) - before < 10  # what had been captioned was not asked again


def test_after_a_read_error_queued_requests_are_cancelled(server):
    model = served.ServedModel(served.ChatPrompt("m", "What?", {}, 1, None), server.url, 1, 2, 0)
    begun, over = threading.Event(), threading.Event()

    def answer():
        begun.set()
        over.wait(100)
        return said("a photo")

    server.usual = answer

    def batches():
        yield Batch(0, [{"image": "a"}] * 8, [served.GREY] * 8)
        begun.wait(100)
        raise UserError("the store is gone")

    with pytest.raises(UserError, match="the store is gone"):
        list(model.prefetch(batches()))
    over.set()
    model.pool.shutdown(wait=True)
    assert len(server.asked) == 2  # the grey image, and the request in flight


def test_an_unfinished_run_continues_at_another_url_but_not_with_another_prompt(
    run, server, photos
):
    with killed_after(1):
        assert "stopped by SIGTERM" in run(photos, "--batch_size", "2")[1]
    for flags, name in ((["--prompt", "Why?"], "prompt"), (["--max_length", "9"], "max_tokens")):
        assert f"the unfinished run has {name}" in run(photos, *flags, code=2)[1]
    elsewhere = server.url.replace("127.0.0.1", "localhost").replace("/v1", "")  # which is added
    lines, log = run(photos, "--batch_size", "2", url=elsewhere)
    assert len(lines) == 10 and "continuing" in log


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ((404, {}, "no such model"), "404 no such model (its models: wise, old)"),
        (said("one"), "got 1 captions instead of 3; use --num_return 1"),
    ],
)
def test_a_server_that_refuses_all_is_one_line_at_once(run, server, photos, tmp_path, answer, line):
    """Other refusals are in tests/captioning/metrics/test_clair.py."""
    server.models = (200, {}, json.dumps({"data": [{"id": "wise"}, {"id": "old"}]}))
    server.faults["grey"] = [answer]
    _, log = run(photos, "--do_sample", "--num_return", "3", code=2)
    assert log == f"error: {server.url}: {line}\n"
    assert all(is_grey(body) for _, _, body in server.asked)
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--num_beams", "3"], "--num_beams does not apply to --backend openai"),
        (["--typical_p", "0.5"], "--typical_p does not"),
        (["--device", "cuda"], "--device does not"),
        (["--temperature", "0.7"], "--temperature needs --do_sample"),
        (["--num_return", "2"], "--num_return 2 needs --do_sample"),
        (["--do_sample", "--top_p", "2"], "--top_p is 2.0; it must be 1 or less"),
        (["--url", "https://me:secret@host/v1"], "--url has to be an address"),
        (["--url", ""], "--backend openai needs --url"),
        (["--backend", "checkpoint"], "--url is for --backend openai"),
    ],
)
def test_flags_that_do_not_go_together_are_one_line_before_a_request(
    run, server, photos, tmp_path, flags, reason
):
    with unchanged(tmp_path):
        _, log = run(photos, *flags, code=2)
    assert "secret" not in one_error_line(log, reason) and not server.asked


def sent(path):
    kind, _, text = as_data_url(str(path)).partition(";base64,")
    data = base64.b64decode(text)
    return kind.rpartition("/")[2], data, Image.open(io.BytesIO(data))


def test_unsupported_images_are_sent_as_jpeg(tmp_path):
    square = Image.new("RGB", (40, 20), (200, 100, 50))
    for name, expected in (("a.jpg", "jpeg"), ("a.png", "png"), ("a.webp", "webp")):
        square.save(tmp_path / name)
        kind, data, _ = sent(tmp_path / name)
        assert (kind, data) == (expected, (tmp_path / name).read_bytes())
    square.save(tmp_path / "a.bmp")
    moving = {"save_all": True, "append_images": [Image.new("RGB", (40, 20))]}
    square.save(tmp_path / "moving.webp", lossless=True, **moving)
    Image.new("I;16", (40, 20), 200 << 8).save(tmp_path / "deep.png")
    orange, grey = (200, 100, 50), (200, 200, 200)
    for name, pixel in (("a.bmp", orange), ("moving.webp", orange), ("deep.png", grey)):
        kind, data, image = sent(tmp_path / name)
        assert (kind, image.format, image.size) == ("jpeg", "JPEG", (40, 20))
        assert all(abs(a - b) < 4 for a, b in zip(image.getpixel((5, 5)), pixel))
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (3 * MAX_SIDE, 300)).save(tmp_path / "large.jpg", exif=exif)
    assert sent(tmp_path / "large.jpg")[2].size == (100, MAX_SIDE)  # upright


def test_each_photo_is_asked_with_its_columns(run, server, photos):
    rows = [f"{path.name},{n},of {n}\n" for n, path in enumerate(sorted(photos.glob("*.png")))]
    (photos / "list.csv").write_text("".join(["image,title,prompt\n", *rows]))

    def texts():
        found = sorted(body["messages"][0]["content"][1]["text"] for _, _, body in server.asked[1:])
        server.asked.clear()
        return found

    lines, _ = run(photos / "list.csv")
    assert texts() == [line["prompt"] for line in lines] == [f"of {n}" for n in range(9)]
    run(photos / "list.csv", "--existing", "overwrite", "--prompt", "It is {title}. Describe it.")
    assert texts() == [f"It is {n}. Describe it." for n in range(9)]
    _, log = run(photos / "list.csv", "--existing", "overwrite", "--prompt", "{place}", code=2)
    assert "line 2 has no column 'place' of --prompt, only image, title, prompt" in log
