"""The page without a server in headless Chromium, as a visitor uses it."""

import base64
import json
import subprocess

import pytest
import torch

from captioning.data.image import evaluation_transform, load_image
from decoding import DecodingSettings
from tests.web.host import Host

SETTINGS = {"num_beams": 3, "max_length": 20, "min_length": 5}  # the page's
pytestmark = pytest.mark.slow


@pytest.fixture
def opened(browser, host):
    """Return a function that opens the page under a path of the host, or at an address."""
    browser.problems.clear()

    def open_page(where, **screen):
        browser.open(where if ":" in where else f"{host.address}/{where}/", **screen)
        browser.wait("document.body && 'ready' in document.body.dataset")
        return browser

    yield open_page
    assert browser.problems == []


@pytest.fixture
def page(opened, browser, host):
    """Return the browser with the page, which tests share, as it is slow to start."""
    if browser.ask("location.href") != f"{host.address}/whole/":
        opened("whole")
    browser.ask("document.querySelector('#settings').reset()")
    return browser


def choose(page, path):
    """Caption a photo; the page may fail to."""
    act(page, lambda: page.choose_files("#file", path))


def act(page, begin):
    """Begin a caption and wait until the page is done with it."""
    page.ask("delete document.body.dataset.done")
    begin()
    page.wait("'done' in document.body.dataset")


def tokens(page, name="one"):
    found = page.ask(f"document.querySelector('#card-{name}').dataset.tokens")
    page.ask(f"delete document.querySelector('#card-{name}').dataset.tokens")
    return [int(token) for token in (found or "").split()]


def inner(page, selector):
    return page.ask(f"document.querySelector({selector!r}).innerText")


@pytest.fixture(scope="module")
def expected(captioner):
    """Return a function of a photo: what torch generates, and the tokens up to the end."""

    def generate(path, **settings):
        image = evaluation_transform(48)(load_image(path)).unsqueeze(0)
        found = captioner.generate_details(image, DecodingSettings(**{**SETTINGS, **settings}))
        ids = found.token_ids[0, 0]
        count = (ids == captioner.tokenizer.end).nonzero()
        return found, ids[: int(count[0]) + 1 if len(count) else None].tolist()

    return generate


def test_captions_and_probabilities_are_those_of_torch(page, photos, expected, captioner):
    seen = set()
    for beams in (1, 3):
        page.ask(f"document.querySelector('[name=num_beams]').value = {beams}")
        for path in (photos / "first.png", photos / "second.png"):
            choose(page, path)
            found, ids = expected(path, num_beams=beams)
            assert inner(page, "#card-one .text") == inner(page, "#card-two .text")
            assert inner(page, "#card-two .text") == found.captions[0][0]
            assert tokens(page) == tokens(page, "two") == ids
            seen.add(tuple(ids))
            items = "[...document.querySelectorAll('#card-one li')]"
            shown = page.ask(f"{items}.map(e => e.innerText.split('\\n'))")
            image = captioner.encode(evaluation_transform(48)(load_image(path)).unsqueeze(0))
            logits, _ = captioner.score_tokens(image, torch.tensor(ids))
            each = logits.softmax(-1)[range(len(logits)), ids[-len(logits) :]].tolist()
            names = captioner.tokenizer.bert.decode
            parts = [[names([i]), p] for i, p in zip(ids[-len(each) :], each)]
            assert shown == merged([part for part in parts if part[0]])
    assert len(seen) > 1
    page.wait("document.querySelector('#photo').naturalWidth == 70")


def merged(parts):
    """Words of pieces, with the product of their probabilities in percent."""
    words = []
    for piece, probability in parts:
        if piece.startswith("##") and words:
            words[-1] = [words[-1][0] + piece[2:], words[-1][1] * probability]
        else:
            words.append([piece, probability])
    return [[word, f"{round(100 * p)} %"] for word, p in words]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("notes.jpg", "notes.jpg is not an image that this browser can read."),
        ("huge.png", "The photo has 200 megapixels; at most 50 are read. Make it smaller."),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_the_next_is_captioned(
    page, photos, expected, name, sentence
):
    choose(page, photos / name)
    for selector in ("#status", "#card-one .state", "#card-two .state"):
        assert inner(page, selector) == sentence
    page.wait("document.querySelector('#photo').hidden")
    choose(page, photos / "first.png")
    assert tokens(page) == expected(photos / "first.png")[1]
    assert not page.ask("document.querySelector('#photo').hidden")


def test_a_photo_that_is_dropped_or_pasted_is_captioned(page, photos, expected):
    content = base64.b64encode((photos / "second.png").read_bytes()).decode()
    page.ask(
        f"window.data = new DataTransfer(); data.items.add(new File([Uint8Array.from(atob("
        f"{content!r}), c => c.charCodeAt())], 'second.png'))"
    )
    for event in (
        "new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true })",
        "new ClipboardEvent('paste', { clipboardData: data, bubbles: true })",
    ):
        act(page, lambda event=event: page.ask(f"document.body.dispatchEvent({event})"))
        assert tokens(page) == expected(photos / "second.png")[1]
    page.ask("dispatchEvent(new DragEvent('drop', { dataTransfer: new DataTransfer() }))")
    assert inner(page, "#status") == "There is no photo in what was dropped or pasted."


def test_the_keyboard_is_enough_and_the_page_fits_a_phone(page, photos, expected):
    page.resize(390)
    choose(page, photos / "first.png")
    tokens(page)
    order = []
    page.ask("document.activeElement.blur(); scrollTo(0, 0)")
    for _ in range(8):
        page.press("Tab")
        order.append(page.ask("document.activeElement.id || document.activeElement.name"))
        rings = "[...document.querySelectorAll('main *')].filter(e => e.checkVisibility() &&"
        rings += (
            " getComputedStyle(e).outlineStyle == 'solid').map(e => e.htmlFor || e.id || e.name)"
        )
        assert page.ask(f"[...new Set({rings})]") == order[-1:]
    numbers = ["num_beams", "min_length", "max_length"]
    assert order == ["file", "take", *numbers, "dtype", "device", "caption"]
    act(page, lambda: page.press("Enter"))
    assert tokens(page) == expected(photos / "first.png")[1]
    assert page.ask("document.scrollingElement.scrollWidth") == 390


def test_the_camera_takes_a_photo_that_is_captioned(page, built):
    page.ask("document.querySelector('#take').focus()")
    page.press("Enter")
    page.wait("document.querySelector('#camera').videoWidth")
    assert inner(page, "#take") == "Take it now"
    act(page, lambda: page.press("Enter"))
    assert inner(page, "#take") == "Take a photo"
    start = json.loads((built / "models/one/generation_config.json").read_text())
    assert tokens(page)[:4] == start["decoder_start_token_id"][0]
    page.wait("document.querySelector('#photo').naturalWidth > 100")


def test_a_second_visit_needs_no_host(opened, browser, built, photos, expected):
    """A host without headers has no threads at first; the service worker adds the headers."""
    host = Host(built)
    browser.requests.clear()
    page = opened(f"{host.address}/offline/")
    assert not page.ask("crossOriginIsolated")
    choose(page, photos / "first.png")
    assert tokens(page) == expected(photos / "first.png")[1]
    host.stop()
    page = opened(f"{host.address}/offline/")
    assert page.ask("crossOriginIsolated")
    choose(page, photos / "second.png")
    assert tokens(page) == tokens(page, "two") == expected(photos / "second.png")[1]
    page.ask("document.querySelector('[name=dtype]').value = 'q8'")
    choose(page, photos / "first.png")
    assert "or there is no connection" in inner(page, "#card-one .state")
    page.ask("document.querySelector('[name=dtype]').value = 'fp32'")
    choose(page, photos / "first.png")
    assert tokens(page) == tokens(page, "two") == expected(photos / "first.png")[1]
    assert {url.split("/")[2] for url in browser.requests if url.startswith("http")} == {
        host.address.split("/")[2]
    }


def test_the_headers_of_the_own_server_allow_threads(opened, repository, built, photos, expected):
    command = ["node", "web/serve.mjs", built, "0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=repository, stdout=pipe, text=True) as server:
        try:
            page = opened(server.stdout.readline().split()[-1])
            assert page.ask("crossOriginIsolated")
            choose(page, photos / "first.png")
            assert tokens(page) == expected(photos / "first.png")[1]
        finally:
            server.kill()


def test_models_of_one_name_are_refused(build, export, tmp_path):
    built = build(tmp_path / "page", f"one=A={export}", f"one=B={export}")
    assert built.returncode == 2 and not (tmp_path / "page").exists()
    assert built.stderr == "error: two models have the same name\n"


def test_a_model_that_is_not_whole_is_named_and_the_other_captions(
    opened, host, built, photos, expected
):
    """The other model captions; so does this one once all of its files are whole."""
    page = opened("broken")
    files = ["tokenizer.json", "config.json", "encoder_model.onnx", "decoder_model_merged.onnx"]
    for cut, file in enumerate(files):
        path = f"models/one/{'onnx/' * file.endswith('onnx')}{file}"
        content = (built / path).read_bytes()
        host.changes[f"broken/{path}"] = content[: len(content) // 2] if cut % 2 else None
    for change in [path for path in host.changes if path.startswith("broken/")]:
        choose(page, photos / "first.png")
        state = inner(page, "#card-one .state")
        assert "models/one" in state and inner(page, "#status").startswith("The second: ")
        assert tokens(page, "two") == expected(photos / "first.png")[1] and not tokens(page)
        del host.changes[change]
    choose(page, photos / "second.png")
    assert tokens(page) == tokens(page, "two") == expected(photos / "second.png")[1]


def test_a_browser_without_simd_is_told_to_be_updated(browser, host):
    script = browser.inject("WebAssembly.validate = () => false")
    browser.open(f"{host.address}/whole/")
    browser.wait("document.querySelector('#status')?.innerText")
    assert inner(browser, "#status") == (
        "This browser has no WebAssembly SIMD, which the captioner needs. Please update it."
    )
    browser.withdraw(script)


def test_memory_that_runs_out_is_told_and_the_next_photo_captioned(
    opened, host, built, browser, photos, expected
):
    """A worker without memory for its runtime is replaced."""
    errors = ["WebAssembly.Memory(): could not allocate memory", "Array buffer allocation failed"]
    fail = f"function () {{ throw new RangeError({json.dumps(errors)}[self.name]) }}"
    code = f"if (self.name in [0, 1]) WebAssembly.instantiate = WebAssembly.Memory = {fail};"
    host.changes["poor/worker.js"] = (built / "worker.js").read_bytes() + code.encode()
    script = browser.inject(
        "{ let count = 0; Worker = class extends Worker { constructor(url, options) {"
        " super(url, {...options, name: String(count++)}) } } }"
    )
    page = opened("poor")
    choose(page, photos / "first.png")
    for name in ("one", "two"):
        assert inner(page, f"#card-{name} .state") == (
            f"There is not enough memory for {name}. Choose 8 bits, or close other tabs, and try "
            "again."
        )
    choose(page, photos / "first.png")
    assert tokens(page) == expected(photos / "first.png")[1]
    browser.withdraw(script)
