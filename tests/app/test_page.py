"""The page in headless Chromium, as a visitor uses it: mouse, keyboard, phone, bad files."""

import json
import urllib.request
import zipfile

import pytest

FIELD = "#photo input[type=file]"
SENT = "document.querySelector('#photo img')?.src.includes('file=')"
WORD = ".smile-card:nth-child(2) .smile-word"


@pytest.fixture
def page(server, browser):
    """Return the browser with the page open, on a wide screen."""
    return opened(browser, server)


def opened(browser, server, **screen):
    browser.requests.clear()
    browser.open(server, **screen)
    browser.wait(f"document.querySelector({FIELD!r})")
    browser.wait("[...document.querySelectorAll('.label-wrap')].some(e => e.offsetParent)")
    return browser


def tab(page, name):
    page.ask(
        "[...document.querySelectorAll('[role=tab]')]"
        f".find(e => e.innerText.trim() == {name!r} && e.offsetParent).click()"
    )


def fill(page, fields, values):
    """Repeated, since Gradio may reset fields that it has just shown."""
    page.wait(
        "(async (fields, values) => {"
        " fields.forEach((field, i) => { field.value = values[i];"
        " field.dispatchEvent(new Event('input')) });"
        " await new Promise(done => setTimeout(done, 300));"
        " return fields.every((field, i) => field.value == values[i])"
        f" }})({fields}, {json.dumps(values)})"
    )


def caption(page, path):
    page.choose_files(FIELD, path)
    press_caption(page)


def press_caption(page):
    """Press the button after the photo is uploaded."""
    page.wait(SENT)
    page.ask("document.querySelector('#caption').click()")


def text(page, selector):
    return page.ask(f"document.querySelector({selector!r}).innerText").strip()


def test_a_photo_has_a_caption_of_each_checkpoint_with_probabilities_and_attention_maps(
    page, files, server, tmp_path
):
    caption(page, files / "photo.jpg")
    page.wait("document.querySelectorAll('.smile-card').length == 3")
    labels = page.ask("[...document.querySelectorAll('.smile-card h3')].map(e => e.innerText)")
    assert labels == ["MLE", "SMILE", "MLE+SMILE 0.5:0.5"]
    body = (files / "photo.jpg").read_bytes()
    with urllib.request.urlopen(f"{server}/api/caption?checkpoint=SMILE", body) as answer:
        (expected,) = json.load(answer)
    words = page.ask(f"[...document.querySelectorAll({WORD!r})].map(e => e.firstChild.innerText)")
    assert words == [entry["word"] for entry in expected["words"]]

    hidden = "document.querySelector('.smile-card:nth-child(2) .smile-attention')"
    assert page.ask(f"{hidden}.hidden")
    page.hover(f"{WORD}:nth-child(2)")
    page.wait(f"!{hidden}.hidden && {hidden}.naturalWidth > 0")
    assert page.ask(f"{hidden}.src == document.querySelectorAll({WORD!r})[1].dataset.attention")
    percent = f"{100 * expected['words'][1]['probability']:.1f}".rstrip("0").rstrip(".")
    seen = text(page, ".smile-card:nth-child(2) .smile-seen")
    assert seen.startswith(f"{words[1]}: ") and seen.endswith(" %")
    assert float(seen.split(": ")[1][:-2]) == pytest.approx(float(percent), abs=0.11)
    page.hover("h1")
    page.wait(f"{hidden}.hidden")

    assert downloaded(page)[1]["caption"] == expected["caption"]
    copy = "document.querySelectorAll('.smile-copy')[1]"
    page.ask("navigator.clipboard.writeText = async (text) => { window.copied = text }, 0")
    page.ask(f"{copy}.click()")
    page.wait(f"{copy}.innerText == 'Copied'")
    assert page.ask("window.copied") == expected["caption"]
    # No other server is asked, and no script has failed.
    asked = [url for url in page.requests if not url.startswith((server, "data:", "blob:"))]
    assert asked == [] and page.problems == []


def open_settings(page):
    page.ask("[...document.querySelectorAll('.label-wrap')].find(e => e.offsetParent).click()")
    page.wait("document.querySelectorAll('input[type=range]')[1]?.offsetParent")


def choose(page, value):
    radio = f"[...document.querySelectorAll('[type=radio]')].find(e => e.value == {value!r})"
    page.ask(f"{radio}.click()")
    page.wait(f"{radio}.checked")


def downloaded(page):
    page.wait("document.querySelector('.smile-download')")
    return page.ask(
        "fetch(document.querySelector('.smile-download').href).then(answer => answer.json())"
    )


@pytest.mark.slow
def test_only_controls_with_an_effect_are_shown_and_used(page, files):
    open_settings(page)
    shown = (
        "['beams', 'sampling', 'candidate-count']"
        ".filter(e => document.querySelector('.smile-' + e).checkVisibility())"
    )
    assert page.ask(shown) == ["beams"]
    choose(page, "Sampling")
    assert page.ask(shown) == ["sampling"]
    for value in ("mbr", "Beam search", "mmi"):
        choose(page, value)
        assert page.ask(shown) == ["sampling", "candidate-count"]
    lengths = "document.querySelectorAll('input[type=range]')"
    prompt = "document.querySelector('[placeholder=\"a picture of\"]')"
    top_p = "document.querySelector('.smile-sampling input[type=range]')"
    fill(page, f"[{lengths}[0], {lengths}[1], {prompt}, {top_p}]", [6, 7, "A large", 0.5])
    caption(page, files / "photo.jpg")
    expected = {"rerank": "mmi", "top_p": 0.5, "sample": False, "prompt": "a large "}
    expected |= {"min_length": 6, "max_length": 7}
    for entry in downloaded(page):
        assert expected.items() <= entry["settings"].items()
        # [DEC], a, large and these are 6 to 7 tokens.
        assert 3 <= len(entry["words"]) <= 4


@pytest.mark.slow
def test_a_photo_that_is_refused_is_one_line_in_the_page(page, files):
    page.ask("document.querySelector('#caption').click()")
    page.wait("/no photo/.test(document.querySelector('#results [role=alert]')?.innerText)")
    caption(page, files / "huge.png")
    line = "huge.png: 6000 x 4000 pixels; this page takes up to 20 million"
    page.wait(f"document.querySelector('#results').innerText.includes({line!r})")
    shown = text(page, "#results [role=alert]")
    assert "\n" not in shown and str(files) not in shown


@pytest.mark.slow
def test_the_keyboard_alone_is_enough(page, files):
    focus = "document.activeElement"

    def go_to(found):
        for _ in range(60):
            if page.ask(f"Boolean({found})"):
                return
            page.press("Tab")
        raise AssertionError(f"Tab never comes to {found}")

    go_to(f"{focus}.closest('.gallery-item')")
    page.press("Enter")
    page.wait(SENT)
    go_to(f"{focus}.value == 'Sampling'")
    page.press(" ")
    go_to(f"{focus}.closest('#caption')")
    page.press("Enter")
    page.wait("document.querySelectorAll('.smile-card').length == 3")
    assert downloaded(page)[0]["settings"]["sample"] is True
    go_to(f"{focus}.closest('.smile-word')")
    page.wait("!document.querySelector('.smile-attention').hidden")
    first = page.ask(f"{focus}.ariaLabel")
    page.press("ArrowRight")
    assert page.ask(f"{focus} == document.querySelectorAll('.smile-word')[1]")
    assert page.ask(
        "document.querySelector('.smile-attention').src == document.activeElement.dataset.attention"
    )
    page.press("ArrowLeft")
    assert page.ask(f"{focus}.ariaLabel") == first
    page.press("Tab")
    page.wait("document.querySelector('.smile-attention').hidden")


@pytest.mark.slow
def test_the_page_fits_a_phone_and_the_dark(browser, server, files, tmp_path):
    page = opened(browser, server, width=390, height=844, dark=True)
    for name in ("Compare", "Batch", "About"):
        tab(page, name)
        assert page.ask("document.documentElement.scrollWidth") <= 390, name
    tab(page, "Compare")
    caption(page, files / "photo.jpg")
    page.wait("document.querySelectorAll('.smile-card').length == 3")
    assert page.ask("document.documentElement.scrollWidth") <= 390
    left = page.ask("[...document.querySelectorAll('.smile-card')].map(e => e.offsetLeft)")
    assert len(set(left)) == 1  # one below the other
    red, green, blue = page.ask(
        "getComputedStyle(document.querySelector('.smile-card h3')).color.match(/[0-9]+/g)"
        ".map(Number)"
    )
    assert min(red, green, blue) > 180  # light on dark
    page.picture(tmp_path / "phone.png")
    assert (tmp_path / "phone.png").stat().st_size > 20_000


@pytest.mark.slow
def test_a_batch_is_captioned_into_a_zip(page, files, tmp_path):
    tab(page, "Batch")
    page.wait("document.querySelector('#photos input[type=file]')")
    names = ("photo.jpg", "other.png", "cut.jpg")
    page.choose_files("#photos input[type=file]", *(files / name for name in names))
    page.wait("document.querySelectorAll('#photos tr').length >= 3")
    page.ask("document.querySelector('#caption-all').click()")
    page.wait("document.querySelector('#zip a')")
    page.wait("document.querySelector('#batch-results table')")
    assert "cut.jpg: not a readable image" in text(page, "#batch-results [role=alert]")
    assert page.ask("document.querySelectorAll('#batch-results tbody tr').length") == 6
    with urllib.request.urlopen(page.ask("document.querySelector('#zip a').href")) as answer:
        (tmp_path / "captions.zip").write_bytes(answer.read())
    with zipfile.ZipFile(tmp_path / "captions.zip") as archive:
        assert len(archive.read("captions.jsonl").splitlines()) == 6
        assert "SMILE/other.txt" in archive.namelist()
