"""What a page shows is in its address: links, reloads, back and forward, two tabs; and what is in sight at first."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.servers import Server
from tests.browser.waiting import wait_until

pytestmark = pytest.mark.browser


def open_tab(page: Page, name: str) -> None:
    expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")


def with_its_pictures(page: Page) -> None:
    """Wait until the page has run and its pictures are here: once it is left, the server has none for it any more."""
    page.wait_for_selector("[data-testid='stApp'][data-test-script-state='notRunning']", state="attached")
    wait_until(page, "[...document.images].every(image => image.complete)")


@pytest.mark.wide
def test_a_finding_is_found_by_link_reload_back_and_forward(
    page: Page, server: Server, scripted_run: str, script_errors: list[str]
) -> None:
    start = f"{server.url}/results?run={scripted_run}"
    page.goto(f"{start}&tab=curves&level=0.75")
    open_tab(page, "Curves")
    expect(page.get_by_role("radio", name="75 %")).to_be_checked()
    steps = page.evaluate("history.length")
    page.get_by_role("radio", name="50 %").click()
    expect(page).not_to_have_url(re.compile("level="))  # the usual one
    page.get_by_role("radio", name="25 %").click()
    expect(page).to_have_url(re.compile("level=0.25"))
    page.get_by_role("tab", name="Heat map").click()
    expect(page).to_have_url(re.compile("tab=heat-map"))
    assert page.evaluate("history.length") == steps
    page.reload()
    open_tab(page, "Heat map")
    page.get_by_role("button", name="Help and account").click()
    page.get_by_role("link", name="Guide").click()
    expect(page.get_by_role("heading", name="What is sensitivity?")).to_be_visible()
    with_its_pictures(page)
    page.go_back()  # tabs and levels are no steps
    open_tab(page, "Heat map")
    expect(page.get_by_role("radio", name="25 %")).to_be_checked()
    other = page.context.new_page()
    other.goto(f"{start}&show-layers=yes")
    open_tab(other, "Layers")
    open_tab(page, "Heat map")
    other.close()
    assert not script_errors  # not even an address that does not exist


_IS_ON_TOP = """button => {
    const box = button.getBoundingClientRect();
    return button.contains(document.elementFromPoint(box.x + box.width / 2, box.bottom - 2));
}"""


@pytest.mark.wide
@pytest.mark.parametrize("size", [(1280, 600), (390, 720)])
def test_run_is_in_sight_and_so_is_the_second_demo(page: Page, size: tuple[int, int]) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    for name in ("Run", "Photographs"):
        button = page.get_by_role("button", name=name, exact=True)
        expect(button).to_be_in_viewport(ratio=1)
        assert button.evaluate(_IS_ON_TOP), f"something covers {name}"
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.wide
def test_the_first_bar_is_in_sight_beside_a_long_title(page: Page, server: Server, scripted_run: str) -> None:
    page.set_viewport_size({"width": 1280, "height": 720})
    page.goto(f"{server.url}/results?run={scripted_run}")
    bar = page.locator("path[aria-roledescription=bar]").locator("visible=true").first
    expect(bar).to_be_visible()
    page.locator("h1").evaluate("title => { title.textContent = 'A network of a long name, tuned anew · '.repeat(9) }")
    place = bar.bounding_box()
    assert place is not None
    assert place["y"] <= 330
    expect(page.get_by_role("button", name="Share or save")).to_be_in_viewport(ratio=1)
