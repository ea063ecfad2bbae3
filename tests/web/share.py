"""The share of photos for which the page's caption equals that of captioning.caption.

    python -m tests.web.share ADDRESS LINES_OF_CAPTIONING_CAPTION

docs/web.md has the commands before it. Captions are those of the page's first model.
"""

import argparse
import json
from pathlib import Path

from tests.chromium import chromium, expect, open_page

CAPTIONS = """Object.fromEntries([...document.querySelectorAll("article")].map(
    card => [card.querySelector("h2").textContent, card.querySelector("dd").textContent]))"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("address")
    parser.add_argument("captions", type=Path)
    given = parser.parse_args()
    rows = [json.loads(line) for line in given.captions.read_text("utf-8").splitlines()]
    with chromium() as browser:
        page = open_page(browser, given.address)
        expect(page.locator("#status")).to_have_text("Ready")
        page.set_input_files("#files", [row["image"] for row in rows])
        expect(page.locator("article")).to_have_count(len(rows))
        expect(page.locator("#status")).to_have_text("Ready")
        found = page.evaluate(CAPTIONS)
    pairs = [(row["caption"], found[Path(row["image"]).name]) for row in rows]
    print(*(f"{ours}\n  the page: {theirs}" for ours, theirs in pairs if ours != theirs), sep="\n")
    print(f"{sum(a == b for a, b in pairs)} of {len(pairs)} captions are equal")


if __name__ == "__main__":
    main()
