"""The page without a server in headless Chromium, as a visitor uses it."""

import base64

import numpy as np
import pytest
from PIL import Image

from benchmarks.captioners import TINY
from captioning.data.image import evaluation_transform
from decoding import DecodingSettings

SIZE = TINY["image_size"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Return a folder of two photos in the captioner's size, and of files that are refused."""
    folder = tmp_path_factory.mktemp("photos")
    noise = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 4), dtype=np.uint8)
    noise[..., 3] = 255
    noise[: SIZE // 2, :, 3] = 0  # transparent: white, as everywhere in the project
    Image.fromarray(noise).save(folder / "first.png")
    Image.fromarray(noise[..., :3] // 2).save(folder / "second.png")
    (folder / "notes.jpg").write_text("no photo at all")
    Image.new("1", (20_000, 10_000)).save(folder / "huge.png")
    return folder


@pytest.fixture(scope="module")
def expected(captioner, photos):
    """Return a function of a photo's name: torch's caption."""

    def generate(name, max_length=20):
        with Image.open(photos / name) as image:
            white = Image.new("RGBA", image.size, "white")
            white.alpha_composite(image.convert("RGBA"))
        pixels = evaluation_transform(SIZE)(white.convert("RGB")).unsqueeze(0)
        settings = DecodingSettings(num_beams=1, max_length=max_length, min_length=5)
        return captioner.generate(pixels, settings)[0]

    return generate


@pytest.fixture
def page(browser, built):
    """Return the browser with the page, newly opened."""
    browser.problems.clear()
    browser.open(built.address)
    wait(browser)
    yield browser
    assert browser.problems == []


def wait(page):
    """Wait until the page has captioned everything."""
    page.wait("document.querySelector('#status')?.innerText == 'Ready'")


def choose(page, *paths):
    """Caption photos. Return the texts of each card, of the last photo first."""
    page.ask("document.querySelector('main').replaceChildren()")
    page.choose_files("#files", *paths)
    page.wait(f"document.querySelectorAll('article').length == {len(paths)}")
    wait(page)
    texts = "[...card.querySelectorAll('h2, dt, dd')].map(line => line.textContent)"
    return page.ask(f"[...document.querySelectorAll('article')].map(card => {texts})")


def test_captions_are_those_of_torch_with_both_models(page, photos, expected):
    paths = [photos / "first.png", photos / "second.png"]
    for length in (20, 9):
        page.ask(f"document.querySelector('[name=max_length]').value = {length}")
        cards = choose(page, *paths)
        assert cards == [
            [name, "one", expected(name, length), "two", expected(name, length)]
            for name in ("second.png", "first.png")
        ]
    assert "" != expected("first.png") != expected("second.png") != ""
    page.ask("document.querySelector('[name=max_length]').value = 5000")
    page.choose_files("#files", *paths)
    assert page.ask("document.querySelectorAll('article').length") == 2  # not captioned again


def test_a_file_that_cannot_be_read_is_named_and_the_next_is_captioned(page, photos, expected):
    cards = choose(page, *(photos / name for name in ("notes.jpg", "huge.png", "first.png")))
    assert cards == [
        ["first.png", "one", expected("first.png"), "two", expected("first.png")],
        ["huge.png", "failed", "200 megapixels; at most 50 are read"],
        ["notes.jpg", "failed", "not an image that this browser can read"],
    ]


def test_photos_that_are_dropped_or_pasted_are_captioned(page, photos, expected):
    content = base64.b64encode((photos / "second.png").read_bytes()).decode()
    page.ask(
        f"window.data = new DataTransfer(); data.items.add(new File([Uint8Array.from(atob("
        f"{content!r}), c => c.charCodeAt())], 'second.png'))"
    )
    for count, event in enumerate(
        (
            "new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true })",
            "new ClipboardEvent('paste', { clipboardData: data, bubbles: true })",
        )
    ):
        page.ask(f"document.body.dispatchEvent({event})")
        page.wait(f"document.querySelectorAll('article').length == {count + 1}")
        wait(page)
        assert page.ask("document.querySelector('dd').innerText") == expected("second.png")


def test_the_keyboard_is_enough_and_the_page_fits_a_phone(page, photos):
    page.resize(390)
    choose(page, photos / "first.png")
    order = []
    page.ask("document.activeElement.blur(); scrollTo(0, 0)")
    for _ in range(3):
        page.press("Tab")
        order.append(page.ask("document.activeElement.id || document.activeElement.name"))
    assert order == ["files", "max_length", "dtype"]
    assert page.ask("document.scrollingElement.scrollWidth") == 390


def test_models_are_kept_and_a_damaged_one_is_named_and_fetched_again(
    page, browser, built, photos, expected
):
    """While a file is damaged, the other model captions."""
    whole = ["first.png", "one", expected("first.png"), "two", expected("first.png")]
    assert choose(page, photos / "first.png") == [whole]
    graph = built.one / "onnx/encoder_model.onnx"
    content = graph.read_bytes()
    graph.write_bytes(content[: len(content) // 2])
    browser.open(built.address)
    wait(page)
    assert choose(page, photos / "first.png") == [whole]  # of the files that the browser has kept
    page.ask("caches.keys().then(names => Promise.all(names.map(name => caches.delete(name))))")
    browser.open(built.address)
    wait(page)
    [card] = choose(page, photos / "first.png")
    assert card[0::2] == [whole[0], card[2], whole[4]] and card[2] != whole[2]
    assert page.ask("document.querySelectorAll('.failed').length") == 1
    graph.write_bytes(content)
    assert choose(page, photos / "first.png") == [whole]


def test_the_page_may_use_threads_and_no_other_host(page, built):
    assert page.ask("crossOriginIsolated")
    refused = "fetch('http://127.0.0.1:9/').then(() => '', error => error.message)"
    assert page.ask(refused) == "Failed to fetch"
    assert all(url.startswith((built.address, "blob:")) for url in page.requests)


def test_two_checkpoints_of_one_name_are_refused(build, checkpoint, tmp_path):
    with build(tmp_path, checkpoint, checkpoint) as refused:
        assert refused.stdout.read() == ""
        last = refused.stderr.read().splitlines()[-1]
    assert (refused.returncode, last) == (2, "error: two checkpoints are named one: rename one")
    assert not (tmp_path / "output/web/models").exists()
