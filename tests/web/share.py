"""The share of photos for which the page's caption equals that of captioning.caption.

    bash scripts/web.sh output/demo/smile    # in another shell, it serves the page
    bash scripts/caption.sh output/demo/smile photos --out ours.jsonl \\
        num_beams=1 max_length=20 min_length=5
    python -m tests.web.share http://127.0.0.1:7861 ours.jsonl

Captions are those of the page's first model. Needs Chromium.
"""

import argparse
import json
from pathlib import Path

from tests.chromium import chromium, expect, open_page

CAPTIONS = """Object.fromEntries([...document.querySelectorAll("article")].map(
    card => [card.querySelector("h2").textContent, card.querySelector("dd").textContent]))"""


def main() -> None:
    """Caption the photos of captioning.caption's output in the page, and compare."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("address")
    parser.add_argument("captions", type=Path, help="lines of captioning.caption")
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in arguments.captions.read_text("utf-8").splitlines()]
    paths = [Path(row["image"]) for row in rows]
    with chromium() as browser:
        page = open_page(browser, arguments.address)
        expect(page.locator("#status")).to_have_text("Ready")
        page.set_input_files("#files", paths)
        expect(page.locator("article")).to_have_count(len(rows))
        expect(page.locator("#status")).to_have_text("Ready")
        found = page.evaluate(CAPTIONS)
    different = [row for row, path in zip(rows, paths) if row["caption"] != found[path.name]]
    for row in different:
        caption = found[Path(row["image"]).name]
        print(f"{row['image']}\n  here      {row['caption']}\n  the page  {caption}")
    print(f"{len(rows) - len(different)} of {len(rows)} captions are equal")


if __name__ == "__main__":
    main()
