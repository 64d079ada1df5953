"""How pages look: contrast of every text in light and dark, narrow screens, and how much is on the Schedule page."""

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.servers import Server
from tests.browser.steps import AMOUNTS
from tests.browser.waiting import at_rest, wait_until
from tests.cases import first_of

pytestmark = pytest.mark.browser

AA, AA_LARGE = 4.5, 3.0
TALLEST_SCHEDULE, MOST_CONTROLS, MOST_WORDS = 900, 15, 150

CONTRASTS = """
() => {
  const parse = text => {
    const found = (text || "").match(/[\\d.]+/g);
    return found && found.length >= 3 ? found.slice(0, 4).map(Number) : null;
  };
  const over = (top, below) => {
    const alpha = top.length > 3 ? top[3] : 1;
    return [0, 1, 2].map(part => alpha * top[part] + (1 - alpha) * below[part]);
  };
  const luminance = colour => {
    const [r, g, b] = colour.map(part => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const background = element => {
    const layers = [], label = element.closest("[data-testid=stSliderThumbValue]");  // which stands above its thumb
    for (let at = label ? document.querySelector("[data-testid=stMain]") : element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour && (colour.length < 4 || colour[3] > 0)) layers.push(colour);
      if (colour && colour.length < 4) break;
    }
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const found = [];
  for (const element of document.querySelectorAll("[data-testid=stMain] *, [data-testid=stSidebar] *")) {
    const text = [...element.childNodes].filter(node => node.nodeType === 3).map(node => node.data.trim()).join("");
    const box = element.getBoundingClientRect(), style = getComputedStyle(element);
    if (!text || !box.width || style.visibility === "hidden" || element.closest("[disabled], canvas, iframe")) continue;
    if (element.closest("[data-testid=stIconMaterial]") || element.matches("option, title, desc, style")) continue;
    const isChart = element instanceof SVGElement, base = background(isChart ? element.ownerSVGElement : element);
    const colour = parse(isChart ? style.fill : style.color);
    if (!colour) continue;
    let opacity = 1;
    for (let at = element; at; at = at.parentElement) opacity *= Number(getComputedStyle(at).opacity);
    if (opacity < 0.05) continue;
    const shown = over([colour[0], colour[1], colour[2], (colour.length > 3 ? colour[3] : 1) * opacity], base);
    const [low, high] = [luminance(shown), luminance(base)].sort((a, b) => a - b);
    const size = parseFloat(style.fontSize), bold = Number(style.fontWeight) >= 700;
    const large = size >= 24 || (bold && size >= 18.6);
    found.push({ text: text.slice(0, 60), ratio: (high + 0.05) / (low + 0.05), large });
  }
  return found;
}
"""
"""The contrast of every text in sight with what is behind it, as WCAG 2.2 (1.4.3) counts it."""


def too_faint(page: Page) -> list[Any]:
    found = page.evaluate(CONTRASTS)
    assert len(found) > 10
    return [each for each in found if each["ratio"] < (AA_LARGE if each["large"] else AA) - 0.005]


def does_not_scroll_sideways(page: Page, *widths: int) -> None:
    """Make the window as wide as each of ``widths``, one after the other, and stay at the last."""
    for width in widths:
        page.set_viewport_size({"width": width, "height": 900})
        wait_until(page, "document.documentElement.scrollWidth <= window.innerWidth")


CONTROLS = """
block => [...block.querySelectorAll("button, a, input, summary, textarea, select, [role=slider], [role=tab]")].filter(
  each => each.checkVisibility({ visibilityProperty: true }) && each.getBoundingClientRect().width > 0
    && (each.closest("summary") || !each.closest("details:not([open])"))
).map(each => each.getAttribute("aria-label") || each.innerText)
"""
"""What can be pressed or typed into, help marks and tools of charts too, of what is not folded."""
WORDS = r"""
block => {
  const count = text => text.split(/\s+/).filter(Boolean).length;
  const others = [...block.querySelectorAll("svg text, [data-testid=stIconMaterial]")];
  return count(block.innerText) - others.reduce((sum, each) => sum + count(each.innerText ?? each.textContent), 0);
}
"""
"""The words that are not folded, but for those inside charts and for the names of icons."""


WIDTHS = (390, 640, 1920, 1280)  # 640 is a window of 1280 at 200 % zoom


def visit(page: Page, address: str, heading: str | re.Pattern[str]) -> None:
    """Open a page and wait until it is at rest, its bars drawn where it has any."""
    page.goto(address)
    expect(page.get_by_role("heading", name=heading).first).to_be_visible()
    if "?run=" in address:
        expect(page.locator("path[aria-roledescription=bar]").locator("visible=true").first).to_be_visible()
    at_rest(page)


@pytest.mark.parametrize("scheme", first_of(["light", "dark"]))
def test_every_text_can_be_read_and_no_page_is_wider_than_its_window(
    page: Page, server: Server, scripted_run: str, scheme: Any, script_errors: list[str]
) -> None:
    page.emulate_media(color_scheme=scheme)
    for path, heading in (
        (f"results?run={scripted_run}", "What does each layer lose"),
        (f"schedule?run={scripted_run}", AMOUNTS),
        ("", "What do you need?"),
        ("runs", "Runs"),
    ):
        visit(page, f"{server.url}/{path}", heading)
        assert too_faint(page) == [], path
        if path.startswith("schedule"):
            expect(page.get_by_role("button", name="Check the whole schedule")).to_be_visible()
            block = page.get_by_test_id("stMainBlockContainer")
            assert block.evaluate("block => block.scrollHeight") <= TALLEST_SCHEDULE
            assert len(block.evaluate(CONTROLS)) <= MOST_CONTROLS, block.evaluate(CONTROLS)
            assert block.evaluate(WORDS) <= MOST_WORDS
        if scheme == "light":
            does_not_scroll_sideways(page, *WIDTHS)
    if scheme == "light":
        visit(page, f"{server.url}/guide", "Guide")
        does_not_scroll_sideways(page, *WIDTHS)
    assert not script_errors
