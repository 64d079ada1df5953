"""A link into the app, opened before anybody has seen its first page."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

pytestmark = pytest.mark.browser


def test_the_first_visitor_of_a_fresh_server_may_come_by_a_link(browser: Browser, app_url: str) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    expect.set_options(timeout=60_000)
    page = context.new_page()
    page.goto(f"{app_url}/guide")  # the server of this file is new: nobody has opened its first page
    sidebar = page.get_by_test_id("stSidebar")
    expect(sidebar.get_by_role("link", name="Schedule")).to_be_visible()
    expect(sidebar.get_by_role("link", name="app", exact=True)).to_have_count(0)
    sidebar.get_by_role("link", name="Analyze").click()
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_visible()
    context.close()
