"""A tab whose network is cut connects again by itself, to its session or, where that has ended, to a new one."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.cut_network import CutNetwork
from tests.browser.servers import SCRIPTED, Server, serving

pytestmark = [pytest.mark.browser, pytest.mark.wide]

STATE = "data-test-connection-state"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that forgets a session a second after its page has gone."""
    command = (*SCRIPTED, "--server.disconnectedSessionTTL=1")
    with serving(Server(tmp_path_factory.mktemp("cut"), command=command)) as started:
        yield started


@pytest.fixture
def network(server: Server) -> Iterator[CutNetwork]:
    cut = CutNetwork(server.port)
    yield cut
    cut.close()


@pytest.mark.parametrize("seconds", [0.0, 4.0], ids=["session kept", "session ended"])
def test_a_tab_comes_back_by_itself(visitor: Callable[[], Page], network: CutNetwork, seconds: float) -> None:
    page = visitor()
    page.goto(f"http://localhost:{network.port}/guide")
    app = page.get_by_test_id("stApp")
    expect(page.get_by_role("heading", name="What is sensitivity?")).to_be_visible()
    expect(page.get_by_role("link", name="Runs")).to_be_visible()
    expect(app).to_have_attribute("data-test-script-state", "notRunning")  # a page that is cut half drawn stays so
    network.cut()
    expect(app).not_to_have_attribute(STATE, "CONNECTED")
    page.wait_for_timeout(1000 * seconds)
    network.restore()
    expect(app).to_have_attribute(STATE, "CONNECTED", timeout=25_000)  # Streamlit waits up to 18 s between tries
    page.get_by_role("link", name="Runs").click()
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
