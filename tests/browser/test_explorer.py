"""The views of a finished run in Chromium: one layer in all of them, histograms, saved charts, an import."""

import csv
import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.servers import Server
from tests.browser.steps import import_table, open_section
from tests.browser.waiting import at_rest, wait_until
from tests.pages.records import FRAGILE

pytestmark = pytest.mark.browser


@pytest.fixture
def landing(server: Server, scripted_run: str) -> str:
    return f"{server.url}/results?run={scripted_run}&show-layers=yes"


@pytest.fixture
def results(page: Page) -> Page:
    expect(mark(page, FRAGILE)).to_be_visible()
    return page


def mark(page: Page, label: str) -> Locator:
    """Return the first bar, cell or point whose description begins with ``label``."""
    return page.locator(f'path[aria-label^="{label}: "]').filter(visible=True).first


def open_tab(page: Page, name: str) -> None:
    if name in ("Network", "Histograms"):
        open_tab(page, "More")
        page.get_by_role("radio", name=name, exact=True).click()
        return
    page.get_by_role("tab", name=name, exact=True).click()
    expect(page.get_by_role("tab", name=name, exact=True)).to_have_attribute("aria-selected", "true")


def expect_picked(page: Page, layer: str) -> None:
    expect(page.get_by_role("combobox", name="Layer", exact=True)).to_have_value(layer)


def a_click_frames_its_row_and_leaves_the_rest_of_the_chart_as_it_was_drawn(results: Page) -> None:
    results.locator(f'svg:has(path[aria-label^="{FRAGILE}: "])').first.evaluate("svg => svg.dataset.drawn = 'once'")
    frame = results.locator('svg[data-drawn="once"] path[stroke-width="2"]')
    expect(frame).to_have_count(0)
    for layer in ("fc", "layer1.0.conv2"):
        mark(results, layer).click(force=True)  # what answers to the pointer lies over the bar
        expect_picked(results, layer)
        expect(frame).to_have_count(1)
    at_rest(results)
    results.get_by_role("button", name="Close").click()
    expect(results.get_by_role("button", name="Close")).to_have_count(0)
    at_rest(results)
    expect(results.locator('[data-testid="stVegaLiteChart"] path[stroke-width="2"]')).to_have_count(0)


def a_cell_of_the_heat_map_moves_every_view_to_its_layer(results: Page) -> None:
    open_tab(results, "Heat map")
    mark(results, "layer1.0.conv2").click()
    expect_picked(results, "layer1.0.conv2")
    panel = results.locator(".st-key-layer_panel").filter(visible=True)
    for tab in ("Heat map", "Layers", "Network"):
        open_tab(results, tab)
        expect(panel.get_by_text("layer1.0.conv2", exact=True)).to_be_visible()
    open_tab(results, "Histograms")
    expect(results.get_by_role("heading", name=re.compile("weights of layer1.0.conv2"))).to_be_visible()


def a_block_of_the_tree_opens_and_a_layer_in_it_is_picked(results: Page) -> None:
    open_tab(results, "Network")
    expect(mark(results, "layer1.0")).to_be_visible()
    expect(mark(results, "layer1.0.conv1")).to_have_count(0)
    mark(results, "layer1.0").click()
    expect(mark(results, "layer1.0.conv1")).to_be_visible()
    expect_picked(results, "layer1.0.conv2")  # the most fragile one inside
    mark(results, "layer1.0.conv1").click()
    expect_picked(results, "layer1.0.conv1")
    expect(results.locator(".st-key-layer_panel").filter(visible=True).get_by_text("Parameters")).to_be_visible()


def curves_are_searched_and_a_click_picks_one(results: Page) -> None:
    open_tab(results, "Curves")
    results.get_by_role("radio", name="All").click()
    expect(results.get_by_text("6 of 6 curves are drawn.")).to_be_visible()
    search = results.get_by_role("textbox", name="Search")
    search.fill("layer1")
    search.press("Enter")
    expect(results.get_by_text("2 of 6 curves are drawn.")).to_be_visible()
    mark(results, "layer1.0.conv2").click(force=True)  # the areas that answer to the pointer lie over the point
    expect_picked(results, "layer1.0.conv2")


@pytest.mark.wide
def test_a_click_in_each_view_picks_a_layer_in_all_of_them(results: Page) -> None:
    a_click_frames_its_row_and_leaves_the_rest_of_the_chart_as_it_was_drawn(results)
    a_block_of_the_tree_opens_and_a_layer_in_it_is_picked(results)
    a_cell_of_the_heat_map_moves_every_view_to_its_layer(results)
    curves_are_searched_and_a_click_picks_one(results)


def a_control_stays_where_it_was_drawn_while_the_rest_of_its_row_comes(results: Page) -> None:
    results.evaluate(
        """() => {
            const places = window.places = new Set();
            const note = () => {
                const control = document.querySelector('[role=radiogroup][aria-label=Values]');
                if (control) places.add(Math.round(control.getBoundingClientRect().top));
                requestAnimationFrame(note);
            };
            note();
        }"""
    )
    open_tab(results, "Histograms")
    expect(results.get_by_text("Fold normalization")).to_be_visible()
    results.wait_for_timeout(300)  # for what would move it late
    assert len(results.evaluate("[...window.places]")) == 1


def a_histogram_with_the_sensitivity_of_its_bins(results: Page) -> None:
    results.get_by_role("radio", name="Inputs").click()
    results.get_by_role("button", name="Show histogram").click()
    expect(results.get_by_text("Become zero")).to_be_visible()
    chart = results.locator(
        f'[aria-roledescription=visualization][aria-label*="activations of {FRAGILE} on a grid of 4 bits"]'
    )
    expect(chart).to_be_visible()
    expect(chart.get_by_text("|gradient| of the score")).to_be_visible()


@pytest.mark.wide
def test_histograms(results: Page) -> None:
    a_control_stays_where_it_was_drawn_while_the_rest_of_its_row_comes(results)
    a_histogram_with_the_sensitivity_of_its_bins(results)


@pytest.mark.wide
def test_a_chart_is_saved_as_image_drawing_and_data(results: Page, tmp_path: Path) -> None:
    for label, ending in (("PNG image", "png"), ("SVG drawing", "svg"), ("CSV data", "csv")):
        results.get_by_role("button", name=re.compile(r"\bSave\b")).first.click()
        with results.expect_download() as download:
            results.get_by_role("button", name=label).first.click()
        assert download.value.suggested_filename.endswith(f".{ending}")
        download.value.save_as(tmp_path / f"chart.{ending}")
        results.keyboard.press("Escape")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
    assert "What does each layer lose" in (tmp_path / "chart.svg").read_text()
    drops = {row["layer"]: float(row["drop"]) for row in list(csv.DictReader((tmp_path / "chart.csv").open()))}
    assert max(drops, key=drops.__getitem__) == FRAGILE


@pytest.mark.wide
def test_a_chart_in_a_frame_is_as_wide_before_its_scroll_bar_comes(page: Page, server: Server, tmp_path: Path) -> None:
    page.add_init_script(
        """window.widths = new Set();
        const sizes = new ResizeObserver(list => list.forEach(change => widths.add(change.contentRect.width)));
        new MutationObserver(() => document.querySelectorAll('[class*="st-key-bars_"] [data-testid=stVegaLiteChart]')
            .forEach(chart => sizes.observe(chart))).observe(document, {childList: true, subtree: true});"""
    )
    rows = [
        f"module.block{number}.weight,{level},{90 - level * (1 + number)},99,0.5"
        for number in range(50)
        for level in (0, 0.5)
    ]
    (tmp_path / "deep.csv").write_text("\n".join(["parameter,sparsity,top1,top5,loss", *rows]))
    page.goto(f"{server.url}/runs")
    import_table(page, tmp_path / "deep.csv")
    open_section(page, "Layers")
    expect(mark(page, "block0")).to_be_visible()
    frame = page.locator('[class*="_frame"]').filter(has=mark(page, "block0"))
    assert frame.evaluate("frame => frame.offsetWidth - frame.clientWidth") > 0  # the scroll bar
    assert len(page.evaluate("[...widths]")) == 1


@pytest.mark.wide
@pytest.mark.parametrize(("width", "height"), [(1280, 720), pytest.param(1920, 1080, marks=pytest.mark.wide)])
def test_a_chart_fills_the_screen_of_a_room_and_keys_turn_it(
    page: Page, server: Server, scripted_run: str, width: int, height: int
) -> None:
    page.set_viewport_size({"width": width, "height": height})
    page.goto(f"{server.url}/present?run={scripted_run}")
    expect(page.get_by_text("1 of 3")).to_be_visible()
    at_rest(page)
    page.keyboard.press("PageDown")
    expect(page).to_have_url(re.compile("screen=2"))
    page.reload()
    expect(page.get_by_text("2 of 3")).to_be_visible()
    expect(mark(page, FRAGILE)).to_be_visible()
    chart = page.locator('[data-testid="stVegaLiteChart"] svg').first
    wait_until(
        page, f"() => document.querySelector('[data-testid=stVegaLiteChart] svg').clientHeight > {0.35 * height}"
    )
    assert chart.bounding_box()["width"] > 0.8 * width
    label = chart.locator(".role-axis-label text").first
    assert float(label.evaluate("text => parseFloat(getComputedStyle(text).fontSize)")) > 0.99 * width / 90
    wait_until(page, "() => { const m = document.querySelector('.stMain'); return m.scrollHeight <= m.clientHeight }")
    expect(page.get_by_test_id("stSidebar")).to_have_count(0)
    at_rest(page)
    for key, screen in (("ArrowLeft", 1), ("ArrowRight", 2), ("Space", 3)):
        page.keyboard.press(key)
        expect(page.get_by_text(f"{screen} of 3")).to_be_visible()
        at_rest(page)
    page.keyboard.press("Escape")
    page.wait_for_url(re.compile("/results"))
