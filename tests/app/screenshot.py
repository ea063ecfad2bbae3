"""The picture in the README: the page with what the demo's checkpoints say of a scene.

    bash scripts/demo.sh && python -m tests.app.screenshot docs/page.png

Needs Chromium.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

from benchmarks.browser import Browser

CARDS = "document.querySelectorAll('.smile-card').length == 3"
# Left, top, right and bottom of the photo and the captions in the whole page.
SHOWN = """(() => {
    const boxes = [...document.querySelectorAll('#photo, .smile-card')].map(
        element => element.getBoundingClientRect());
    const least = side => Math.min(...boxes.map(box => box[side]));
    const most = side => Math.max(...boxes.map(box => box[side]));
    return [least("left"), least("top") + scrollY, most("right"), most("bottom") + scrollY];
})()"""
MARGIN = 12


def main() -> None:
    """Start the page, caption the scene, and write what is seen as a PNG with 128 colours."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--photo", type=Path, default="data/scenes/images/scene_006168.png")
    parser.add_argument("--word", type=int, default=3, help="of SMILE's caption, to point at")
    arguments = parser.parse_args()
    command = [sys.executable, "-m", "app", "--port", "0"]
    with tempfile.TemporaryDirectory() as folder:
        page = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            address = next(w for line in page.stderr for w in line.split() if w.startswith("http"))
            with Browser(shutil.which("chromium"), Path(folder)) as browser:
                _photograph(browser, address, arguments)
        finally:
            page.terminate()
            page.wait()


def _photograph(browser: Browser, address: str, arguments: argparse.Namespace) -> None:
    browser.open(address, width=1560, height=700)
    browser.wait("document.querySelector('#photo input[type=file]')")
    browser.choose_files("#photo input[type=file]", arguments.photo.resolve())
    browser.wait("document.querySelector('#photo img')?.src.includes('file=')")
    browser.ask("document.querySelector('#caption').click()")
    browser.wait(CARDS)
    browser.hover(f".smile-card:nth-child(2) .smile-word:nth-child({arguments.word})")
    time.sleep(1)  # results fade in
    left, top, right, bottom = map(round, browser.ask(SHOWN))
    browser.picture(arguments.output)
    with Image.open(arguments.output) as picture:
        shown = picture.crop((left - MARGIN, top - MARGIN, right + MARGIN, bottom + MARGIN))
        shown.convert("RGB").quantize(128).save(arguments.output, optimize=True)


if __name__ == "__main__":
    main()
