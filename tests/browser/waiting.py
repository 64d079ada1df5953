"""Waiting for what a page's own scripts know, where its policy forbids to make code of text."""

import time

from playwright.sync_api import Page

APP = "[data-testid='stApp']"
_LOOK_MILLISECONDS = 50
_MOST_SECONDS = 120.0


def wait_until(page: Page, expression: str, argument: object = None, *, seconds: float = _MOST_SECONDS) -> None:
    """Wait until a JavaScript expression, or a function of ``argument``, is true.

    Playwright's ``wait_for_function`` makes code of text inside the page when it looks again, which the app's content
    security policy refuses; each look from outside is allowed.
    """
    end = time.monotonic() + seconds
    while not page.evaluate(expression, argument):
        assert time.monotonic() < end, f"not true after {seconds:.0f} s: {expression}"
        page.wait_for_timeout(_LOOK_MILLISECONDS)


def at_rest(page: Page) -> None:
    """Wait until the page has run and its parts are there: only then it listens to keys."""
    page.wait_for_selector(f"{APP}[data-test-script-state='notRunning']", state="attached")
    wait_until(page, "!document.querySelector('[data-testid=stSkeleton], [data-stale=true]')")
