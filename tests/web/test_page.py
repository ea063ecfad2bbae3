"""The page that scripts/web.sh builds, in headless Chromium, as a visitor uses it."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.captioners import TINY
from captioning.data.image import evaluation_transform, load_image
from decoding import DecodingSettings
from tests.chromium import expect, open_page

SIZE = TINY["image_size"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def captioner(make_captioner):
    return make_captioner(vit={**TINY["vit"], "initializer_range": 0.3})


@pytest.fixture(scope="module")
def checkpoint(captioner, vocabulary, tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoints") / "one.pth"
    config = {**TINY, "tokenizer": str(vocabulary)}
    torch.save({"model": captioner.state_dict(), "config": config}, path)
    return path


@pytest.fixture(scope="module")
def start_web(repository, tmp_path_factory):
    """Return a function that starts scripts/web.sh in a folder. It installs no packages."""
    if not (repository / "web/node_modules").is_dir():
        pytest.skip("no web/node_modules: run npm ci --prefix web")
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    project, programs = (tmp_path_factory.mktemp(name) for name in ("linked project", "programs"))
    for entry in repository.iterdir():
        if entry.name != "scripts":
            (project / entry.name).symlink_to(entry)
    shutil.copytree(repository / "scripts", project / "scripts")
    (project / "scripts" / "setup.sh").write_text(f"echo '{sys.executable}'\n")
    (programs / "npm").symlink_to(shutil.which("true"))
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    options = {"env": {**os.environ, "PATH": path, "PORT": "0"}, "text": True}
    options.update(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    script = project / "scripts/web.sh"
    return lambda folder, *given: subprocess.Popen(["bash", script, *given], cwd=folder, **options)


@pytest.fixture(scope="module")
def served(start_web, checkpoint, tmp_path_factory):
    """Return the page's address and folder. Its models are a file and a run with its weights."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "two").mkdir()
    shutil.copy(checkpoint, folder / "two/checkpoint_best.pth")
    with start_web(folder, checkpoint, "two/") as server:
        line = server.stdout.readline()
        assert line.startswith("open http"), server.stderr.read()
        yield line.split()[-1], folder / "output/web"
        server.kill()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Return a folder of two photos in the captioner's size, and of files that are refused."""
    folder = tmp_path_factory.mktemp("photos")
    noise = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 4), dtype=np.uint8)
    noise[..., 3] = 255 * (np.arange(SIZE)[:, None] > SIZE // 2)  # the upper half is transparent
    Image.fromarray(noise).save(folder / "first.png")
    Image.fromarray(noise[..., :3] // 2).save(folder / "second.png")
    (folder / "notes.jpg").write_text("no photo at all")
    Image.new("1", (20_000, 10_000)).save(folder / "huge.png")
    return folder


@pytest.fixture(scope="module")
def expected(captioner, photos):
    """Return a function of a photo's name: the card with torch's captions of the photo on white."""

    def card(name, max_length=20):
        pixels = evaluation_transform(SIZE)(load_image(photos / name)).unsqueeze(0)
        settings = DecodingSettings(num_beams=1, max_length=max_length, min_length=5)
        [caption] = captioner.generate(pixels, settings)
        return [name, "one", caption, "two", caption]

    return card


def ready(page):
    expect(page.locator("#status")).to_have_text("Ready")


@pytest.fixture
def page(browser, served):
    """Return the page, newly opened, with an empty cache."""
    page = open_page(browser, served[0])
    ready(page)
    yield page
    assert page.problems == []
    page.close()


def cards(page, count, *paths):
    """Choose files, wait until so many cards are there, and return their texts, newest first."""
    if paths:
        page.set_input_files("#files", paths)
    expect(page.locator("article")).to_have_count(count)
    ready(page)
    texts = "[...card.querySelectorAll('h2, dt, dd')].map(line => line.textContent)"
    return page.evaluate(f"[...document.querySelectorAll('article')].map(card => {texts})")


def test_captions_are_those_of_torch_with_each_model(page, photos, expected):
    """Also after files that cannot be read, which are named."""
    first, second = expected("first.png"), expected("second.png")
    assert "" != first[2] != second[2] != ""
    names = ("second.png", "notes.jpg", "huge.png", "first.png")
    assert cards(page, 4, *(photos / name for name in names)) == [
        first,
        ["huge.png", "failed", "200 megapixels; at most 50 are read"],
        ["notes.jpg", "failed", "not an image that this browser can read"],
        second,
    ]
    page.fill("[name=max_length]", "9")
    assert cards(page, 5, photos / "first.png")[0] == expected("first.png", 9)
    page.fill("[name=max_length]", "5000")
    assert len(cards(page, 5, photos / "first.png")) == 5  # not captioned


def test_photos_that_are_dropped_or_pasted_are_captioned(page, photos, expected):
    content = [*(photos / "second.png").read_bytes()]
    file = f"new File([Uint8Array.from({content})], 'second.png')"
    page.evaluate(f"window.data = new DataTransfer(); data.items.add({file}); 0")
    for event in ("DragEvent('drop', { dataTransfer", "ClipboardEvent('paste', { clipboardData"):
        page.evaluate(f"document.body.dispatchEvent(new {event}: data, bubbles: true }}))")
    assert cards(page, 2) == [expected("second.png")] * 2


def test_the_page_needs_a_keyboard_the_width_of_a_phone_and_its_host(page, served, photos):
    page.set_viewport_size({"width": 390, "height": 900})
    cards(page, 1, photos / "first.png")
    for name in ("files", "max_length", "dtype"):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id || document.activeElement.name") == name
    assert page.evaluate("document.scrollingElement.scrollWidth") == 390
    assert page.evaluate("crossOriginIsolated")  # wasm may use threads
    assert page.requested and all(url.startswith((served[0], "blob:")) for url in page.requested)
    elsewhere = "fetch('http://127.0.0.1:9/').then(() => '', error => error.message)"
    assert page.evaluate(elsewhere) == "Failed to fetch"


def test_models_are_kept_and_a_damaged_one_is_named_and_fetched_again(
    page, served, photos, expected
):
    photo, card = photos / "first.png", expected("first.png")
    cards(page, 1, photo)
    [graph] = served[1].glob("models/one/*/onnx/encoder_model.onnx")
    content = graph.read_bytes()
    graph.write_bytes(content[: len(content) // 2])
    page.reload()
    ready(page)
    assert cards(page, 1, photo) == [card]  # of the files that the browser has kept
    page.evaluate(
        "caches.keys().then(names => Promise.all(names.map(name => caches.delete(name))))"
    )
    page.reload()
    ready(page)
    [found] = cards(page, 1, photo)
    damaged = page.evaluate("document.querySelector('.failed').textContent")
    assert found == [*card[:2], damaged, *card[3:]] and damaged
    graph.write_bytes(content)
    assert cards(page, 2, photo)[0] == card


def test_two_checkpoints_of_one_name_are_refused(start_web, checkpoint, tmp_path):
    with start_web(tmp_path, checkpoint, checkpoint) as refused:
        output, errors = refused.communicate()
    assert (refused.returncode, output) == (2, "")
    assert errors.splitlines()[-1] == "error: two checkpoints are named one: rename one"
