"""The page in headless Chromium, as a visitor uses it: mouse, keyboard, phone, bad files."""

import urllib.request
import zipfile

import pytest

pytestmark = pytest.mark.slow

FIELD = "#photo input[type=file]"
SENT = "document.querySelector('#photo img')?.src.includes('file=')"
WORD = ".smile-card:nth-child(2) .smile-word"
CARDS = "document.querySelectorAll('.smile-card').length == 3"


@pytest.fixture
def page(server, browser):
    return opened(browser, server)


def opened(browser, server, **screen):
    """Return the browser with the page open; by default on a wide screen."""
    browser.requests.clear()
    browser.open(server, **screen)
    browser.wait(f"document.querySelector({FIELD!r})")
    browser.wait("[...document.querySelectorAll('.label-wrap')].some(e => e.offsetParent)")
    return browser


def caption(page, path):
    """Press the button after the photo is uploaded."""
    page.choose_files(FIELD, path)
    page.wait(SENT)
    page.ask("document.querySelector('#caption').click()")


def downloaded(page):
    page.wait("document.querySelector('.smile-download')")
    return page.ask(
        "fetch(document.querySelector('.smile-download').href).then(answer => answer.json())"
    )


def test_a_photo_has_a_caption_of_each_checkpoint_with_probabilities_and_attention_maps(
    page, files, server
):
    caption(page, files / "photo.jpg")
    page.wait(CARDS)
    labels = page.ask("[...document.querySelectorAll('.smile-card h3')].map(e => e.innerText)")
    assert labels == ["MLE", "SMILE", "MLE+SMILE 0.5:0.5"]
    expected = downloaded(page)[1]
    words = page.ask(f"[...document.querySelectorAll({WORD!r})].map(e => e.firstChild.innerText)")
    assert words == [entry["word"] for entry in expected["words"]] and len(words) > 2

    hidden = "document.querySelector('.smile-card:nth-child(2) .smile-attention')"
    assert page.ask(f"{hidden}.hidden")
    page.hover(f"{WORD}:nth-child(2)")
    page.wait(f"!{hidden}.hidden && {hidden}.naturalWidth > 0")
    assert page.ask(f"{hidden}.src == document.querySelectorAll({WORD!r})[1].dataset.attention")
    seen = page.ask("document.querySelector('.smile-card:nth-child(2) .smile-seen').innerText")
    assert seen.startswith(f"{words[1]}: ") and seen.endswith(" %")
    percent = 100 * expected["words"][1]["probability"]
    assert float(seen.split(": ")[1][:-2]) == pytest.approx(percent, abs=0.06)
    page.hover("h1")
    page.wait(f"{hidden}.hidden")

    copy = "document.querySelectorAll('.smile-copy')[1]"
    page.ask("navigator.clipboard.writeText = async (text) => { window.copied = text }, 0")
    page.ask(f"{copy}.click()")
    page.wait(f"{copy}.innerText == 'Copied'")
    assert page.ask("window.copied") == expected["caption"]
    # No other server is asked, and no script has failed.
    asked = [url for url in page.requests if not url.startswith((server, "data:", "blob:"))]
    assert asked == [] and page.problems == []


def test_the_keyboard_alone_is_enough(page):
    """Only the controls of the chosen method are shown."""
    focus = "document.activeElement"
    shown = (
        "['beams', 'sampling'].filter(e => document.querySelector('.smile-' + e).checkVisibility())"
    )
    page.ask("[...document.querySelectorAll('.label-wrap')].find(e => e.offsetParent).click()")
    page.wait(f"{shown} == 'beams'")

    def go_to(found):
        for _ in range(60):
            if page.ask(f"Boolean({found})"):
                return
            page.press("Tab")
        raise AssertionError(f"Tab never comes to {found}")

    go_to(f"{focus}.closest('.gallery-item')")
    page.press("Enter")
    page.wait(SENT)
    go_to(f"{focus}.type == 'radio' && {focus}.value == 'true'")
    page.press(" ")
    page.wait(f"{shown} == 'sampling'")
    go_to(f"{focus}.closest('#caption')")
    page.press("Enter")
    page.wait(CARDS)
    assert downloaded(page)[0]["settings"]["sample"] is True
    go_to(f"{focus}.closest('.smile-word')")
    page.wait("!document.querySelector('.smile-attention').hidden")
    first = page.ask(f"{focus}.ariaLabel")
    page.press("ArrowRight")
    assert page.ask(f"{focus} == document.querySelectorAll('.smile-word')[1]")
    page.press("ArrowLeft")
    assert page.ask(f"{focus}.ariaLabel") == first
    page.press("Tab")
    page.wait("document.querySelector('.smile-attention').hidden")


def test_the_page_fits_a_phone_and_the_dark_and_shows_errors(browser, server, files):
    page = opened(browser, server, width=390, height=844, dark=True)
    page.ask("document.querySelectorAll('.label-wrap').forEach(e => e.click())")
    page.wait("document.querySelector('.smile-about').checkVisibility()")
    page.ask("document.querySelector('#caption').click()")
    page.wait("/no photo/.test(document.querySelector('#results [role=alert]')?.innerText)")
    caption(page, files / "photo.jpg")
    page.wait(CARDS)
    assert page.ask("document.documentElement.scrollWidth") <= 390
    left = page.ask("[...document.querySelectorAll('.smile-card')].map(e => e.offsetLeft)")
    assert len(set(left)) == 1  # one below the other
    colour = "getComputedStyle(document.querySelector('.smile-card h3')).color.match(/[0-9]+/g)"
    assert min(page.ask(f"{colour}.map(Number)")) > 180  # light on dark


def test_a_batch_is_captioned_into_a_zip(page, files, tmp_path):
    """The page takes four photos at a time."""
    tab = "[...document.querySelectorAll('[role=tab]')].find(e => /Batch/.test(e.innerText))"
    page.ask(f"{tab}.click()")
    page.wait("document.querySelector('#photos input[type=file]')")
    page.ask("document.querySelector('#caption-all').click()")
    page.wait("/choose 1 to 4/.test(document.querySelector('#results [role=alert]')?.innerText)")
    names = ("photo.jpg", "other.png", "cut.jpg")
    page.choose_files("#photos input[type=file]", *(files / name for name in names))
    page.wait("document.querySelectorAll('#photos tr').length >= 3")
    page.ask("document.querySelector('#caption-all').click()")
    page.wait("document.querySelector('#zip a') && document.querySelector('#results table')")
    assert page.ask("document.querySelectorAll('#results tbody tr').length") == 6
    errors = page.ask("[...document.querySelectorAll('#results [role=alert]')].map(e=>e.innerText)")
    assert len(errors) == 1 and errors[0].startswith("cut.jpg: not a readable image")
    with urllib.request.urlopen(page.ask("document.querySelector('#zip a').href")) as answer:
        (tmp_path / "captions.zip").write_bytes(answer.read())
    with zipfile.ZipFile(tmp_path / "captions.zip") as archive:
        assert len(archive.read("captions.jsonl").splitlines()) == 6
