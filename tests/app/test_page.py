"""The page in headless Chromium, as a visitor uses it: mouse, keyboard, phone, bad files."""

import re
import urllib.request
import zipfile

import pytest

from tests.chromium import expect, open_page

pytestmark = pytest.mark.slow

UPLOADED = "#photo img[src*='file=']"
CARD = ".smile-card:nth-child(2)"
PHONE = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}


def caption(page, path):
    """Press the button after the photo is uploaded, and wait for the captions."""
    page.set_input_files("#photo input[type=file]", path)
    page.wait_for_selector(UPLOADED, state="attached")
    page.click("#caption")
    expect(page.locator(".smile-card")).to_have_count(3)


def downloaded(page):
    link = page.locator(".smile-download").get_attribute("href")
    return page.evaluate("link => fetch(link).then(answer => answer.json())", link)


def test_a_photo_has_a_caption_of_each_checkpoint_with_probabilities_and_attention_maps(
    browser, files, server
):
    page = open_page(browser, server)
    caption(page, files / "photo.jpg")
    expect(page.locator(".smile-card h3")).to_have_text(["MLE", "SMILE", "MLE+SMILE 0.5:0.5"])
    expected = downloaded(page)[1]
    words = page.locator(f"{CARD} .smile-word > :first-child").all_inner_texts()
    assert words == [entry["word"] for entry in expected["words"]] and len(words) > 2

    attention, word = page.locator(f"{CARD} .smile-attention"), page.locator(f"{CARD} .smile-word")
    expect(attention).to_be_hidden()
    word.nth(1).hover()
    expect(attention).to_be_visible()
    assert attention.evaluate("map => map.decode().then(() => map.naturalWidth)") > 0
    assert attention.get_attribute("src") == word.nth(1).get_attribute("data-attention")
    seen = page.inner_text(f"{CARD} .smile-seen")
    assert seen.startswith(f"{words[1]}: ") and seen.endswith(" %")
    percent = 100 * expected["words"][1]["probability"]
    assert float(seen.split(": ")[1][:-2]) == pytest.approx(percent, abs=0.06)
    page.hover("h1")
    expect(attention).to_be_hidden()
    word.first.focus()
    page.keyboard.press("ArrowRight")
    expect(word.nth(1)).to_be_focused()
    expect(attention).to_be_visible()
    page.keyboard.press("Tab")
    expect(attention).to_be_hidden()

    copy = page.locator(".smile-copy").nth(1)
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text }, 0")
    copy.click()
    expect(copy).to_have_text("Copied")
    assert page.evaluate("window.copied") == expected["caption"]
    # No other server is asked, and no script has failed.
    asked = [url for url in page.requested if not url.startswith((server, "data:", "blob:"))]
    assert page.requested and asked == [] and page.problems == []


def test_the_page_fits_a_phone_and_the_dark_and_captions_a_batch_into_a_zip(
    browser, server, files, tmp_path
):
    """The page takes four photos at a time."""
    page, alerts = open_page(browser, server, **PHONE), "#results [role=alert]"
    page.wait_for_selector(".label-wrap >> visible=true")
    page.evaluate("document.querySelectorAll('.label-wrap').forEach(e => e.click())")
    expect(page.locator(".smile-about")).to_be_visible()
    beams, sampling = (page.locator(f".smile-{name}").first for name in ("beams", "sampling"))
    expect(sampling).to_be_hidden()
    page.check("text=Sampling")
    expect(sampling).to_be_visible()
    expect(beams).to_be_hidden()  # only the controls of the chosen method are shown
    page.click("#caption")
    expect(page.locator(alerts)).to_contain_text("no photo")
    caption(page, files / "photo.jpg")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    left = page.evaluate("[...document.querySelectorAll('.smile-card')].map(e => e.offsetLeft)")
    assert len(set(left)) == 1  # one below the other
    colour = "getComputedStyle(document.querySelector('.smile-card h3')).color.match(/[0-9]+/g)"
    assert min(page.evaluate(f"{colour}.map(Number)")) > 180  # light on dark

    page.click("[role=tab]:has-text('Batch')")
    page.click("#caption-all")
    expect(page.locator(alerts)).to_contain_text("choose 1 to 4")
    names = ("photo.jpg", "other.png", "cut.jpg")
    page.set_input_files("#photos input[type=file]", [files / name for name in names])
    expect(page.locator("#photos tr")).to_have_count(3)
    page.click("#caption-all")
    expect(page.locator("#results tbody tr")).to_have_count(6)
    expect(page.locator(alerts)).to_have_text([re.compile("^cut.jpg: not a readable image")])
    link = page.locator("#zip a").first.get_attribute("href")
    path, _ = urllib.request.urlretrieve(link, tmp_path / "captions.zip")
    assert "captions.jsonl" in zipfile.ZipFile(path).namelist()
