"""The picture in the README: the page with what the demo's checkpoints say of a scene.

    bash scripts/demo.sh && python -m tests.app.screenshot docs/page.png

Needs Chromium.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from PIL import Image

from tests.chromium import chromium, open_page

SCENE = Path("data/scenes/images/scene_006168.png")
# Left, top, right and bottom of photo, captions and examples in the whole page, with a margin.
SHOWN = """(() => {
    const shown = document.querySelectorAll('#photo, .smile-card, .gallery');
    const boxes = [...shown].map(element => element.getBoundingClientRect());
    const least = side => Math.min(...boxes.map(box => box[side])) - 12;
    const most = side => Math.max(...boxes.map(box => box[side])) + 12;
    return [least("left"), least("top") + scrollY, most("right"), most("bottom") + scrollY];
})()"""


def photograph(browser, address: str, output: Path) -> None:
    """Caption the scene, point at a word, and write what is seen as a PNG with 256 colours."""
    page = open_page(browser, address, viewport={"width": 1560, "height": 700})
    page.set_input_files("#photo input[type=file]", SCENE)
    page.wait_for_function("document.querySelector('#photo img')?.src.includes('file=')")
    page.click("#caption")
    page.wait_for_function("document.querySelectorAll('.smile-card').length == 3")
    page.hover(".smile-card:nth-child(2) .smile-word:nth-child(3)")
    page.wait_for_timeout(1000)  # results fade in
    box = page.evaluate(SHOWN)
    page.screenshot(path=output, full_page=True)
    with Image.open(output) as picture:
        shown = picture.crop(tuple(map(round, box))).convert("RGB")
        shown.quantize(256).save(output, optimize=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    output = parser.parse_args().output
    command = [sys.executable, "-m", "app", "--port", "0"]
    page = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        address = next(word for line in page.stderr for word in line.split() if "http://" in word)
        with chromium() as browser:
            photograph(browser, address, output)
    finally:
        page.terminate()
        page.wait()
