"""Two people on one server with login, and somebody who has only been given a link."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.login_provider import login_provider, secrets_for
from tests.browser.servers import SCRIPTED, Server, serving
from tests.browser.steps import RUN_MILLISECONDS, open_options, section, tick

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that asks people to log in; Streamlit finds its secrets in the user's home."""
    folder: Path = tmp_path_factory.mktemp("people")
    server = Server(folder, {"HOME": str(folder)}, command=SCRIPTED)
    with login_provider() as provider:
        _keep_secrets(folder, secrets_for(provider, server.url))
        with serving(server):
            yield server


def _keep_secrets(folder: Path, text: str) -> None:
    place = folder / ".streamlit" / "secrets.toml"
    place.parent.mkdir()
    place.write_text(text)


def arrive(visitor: Callable[[], Page], server: Server) -> Page:
    """Return the first page of somebody with a browser of their own, who has not logged in."""
    page = visitor()
    page.goto(server.url)
    return page


def log_in(page: Page, who: str) -> None:
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("link", name=who).click()
    page.get_by_role("button", name="Help and account").click()
    expect(page.get_by_role("button", name="Log out")).to_be_visible()
    page.keyboard.press("Escape")


@pytest.mark.wide
def test_each_sees_their_own_runs_and_a_link_opens_one(visitor: Callable[[], Page], server: Server) -> None:
    ann, bob, guest = (arrive(visitor, server) for _ in range(3))
    log_in(ann, "ann")
    open_options(ann)
    field = ann.get_by_role("spinbutton", name="Images to measure on")
    field.fill("16")
    field.press("Tab")
    expect(ann.get_by_text("on 16 images")).to_be_visible()
    ann.get_by_role("button", name="Run", exact=True).click()
    expect(section(ann, "Layers")).to_be_visible(timeout=RUN_MILLISECONDS)
    run_id = re.search(r"run=([0-9a-f]{32})", ann.url)
    assert run_id is not None

    log_in(bob, "bob")
    bob.goto(f"{server.url}/results?run={run_id.group(1)}")
    expect(bob.get_by_text("There is no such run")).to_be_visible()
    bob.goto(f"{server.url}/runs")
    expect(bob.get_by_text("No run yet")).to_be_visible()

    ann.goto(f"{server.url}/runs")
    tick(ann, 1)
    ann.get_by_role("button", name="More").click()
    expect(ann.get_by_text("owner: Ann Example")).to_be_visible()
    ann.get_by_role("button", name="Make a link").click()
    link = ann.get_by_test_id("stCode").inner_text().strip()
    assert re.fullmatch(rf"{re.escape(server.url)}/results\?run=[0-9a-f]{{40}}", link)
    for somebody in (bob, guest):
        somebody.goto(link)
        expect(somebody.get_by_text("Shared by Ann Example; you can look, not change.")).to_be_visible()
        expect(section(somebody, "Layers")).to_be_visible()

    ann.get_by_role("button", name="Take the link back").click()
    expect(ann.get_by_role("button", name="Make a link")).to_be_visible()
    bob.goto(link)
    expect(bob.get_by_text("There is no such run")).to_be_visible()
    guest.goto(link)
    expect(guest.get_by_role("heading", name="Log in")).to_be_visible()


@pytest.mark.wide
def test_a_link_leads_to_its_page_after_the_login_and_who_logs_out_is_nobody(
    visitor: Callable[[], Page], server: Server
) -> None:
    ann = arrive(visitor, server)
    place = f"{server.url}/results?run={'0' * 32}"
    ann.goto(place)
    log_in(ann, "ann")
    expect(ann).to_have_url(place)
    expect(ann.get_by_text("There is no such run")).to_be_visible()
    ann.get_by_role("button", name="Help and account").click()
    ann.get_by_role("link", name="Guide").click()
    expect(ann).to_have_url(f"{server.url}/guide")
    ann.reload()
    ann.get_by_role("button", name="Help and account").click()
    expect(ann.get_by_role("button", name="Log out")).to_be_visible()
    expect(ann).to_have_url(f"{server.url}/guide")  # nobody is sent back a second time
    ann.get_by_role("button", name="Log out").click()
    expect(ann.get_by_role("heading", name="Log in")).to_be_visible()
