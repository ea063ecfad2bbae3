"""Drives the system's Chromium, headless, by playwright."""

import contextlib
import shutil
from collections.abc import Iterator

from playwright.sync_api import expect, sync_playwright

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
TIMEOUT_MS = 120_000  # of everything that waits
expect.set_options(timeout=TIMEOUT_MS)


@contextlib.contextmanager
def chromium() -> Iterator:
    """Yield playwright's Browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, timeout=TIMEOUT_MS)
        with browser:
            yield browser


def open_page(browser, address: str, **options):
    """Open an address in a new window and return playwright's Page.

    options: of `Browser.new_page`, such as the viewport. `page.requested` gets the addresses that
    the page requests, and `page.problems` the uncaught errors of its scripts.
    """
    page = browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **options})
    page.set_default_timeout(TIMEOUT_MS)
    page.requested, page.problems = [], []
    page.on("request", lambda request: page.requested.append(request.url))
    page.on("pageerror", lambda error: page.problems.append(error.message))
    page.goto(address)
    return page
