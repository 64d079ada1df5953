"""The outline of every page, as screen readers see it."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Block, HeadingBase, Markdown, Node

from senseapp.app.common.state import pick_key
from senseapp.records.spec import RunSpec
from senseapp.server.backend import Backend
from senseapp.server.service import Service
from tests.cases import first_of
from tests.pages.conftest import finish, open_layers, open_page

PAGES = sorted(path.relative_to(path.parents[1]).as_posix() for path in Path("pages").glob("*.py"))
TABS = ("Layers", "Curves", "Heat map", "More")


def _outline(node: Node) -> Iterator[int]:
    """Yield the level of each heading, in the order of the page."""
    if isinstance(node, HeadingBase):
        yield int(node.tag.removeprefix("h"))
    elif isinstance(node, Markdown):
        hashes = node.value.split(" ")[0]
        if hashes and set(hashes) == {"#"}:
            yield len(hashes)
    elif isinstance(node, Block):
        for child in node.children.values():
            yield from _outline(child)


def _assert_outlined(app: AppTest) -> None:
    levels = list(_outline(app.main))
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(deeper <= level + 1 for level, deeper in pairwise(levels))


@pytest.mark.parametrize("page", first_of(PAGES, 3))
def test_a_page_of_a_run(app: AppTest, finished_run: str, page: str) -> None:
    _assert_outlined(open_page(app, page, run=finished_run))


@pytest.mark.parametrize("tab", first_of(TABS))
def test_a_view_with_a_picked_layer(app: AppTest, finished_run: str, tab: str) -> None:
    open_layers(app, finished_run)
    app.session_state[pick_key(finished_run)] = "conv1"
    app.session_state[f"results.tab.{finished_run}"] = tab
    _assert_outlined(app.run())


def test_two_runs_side_by_side(app: AppTest, service: Service, backend: Backend) -> None:
    app.run()
    app.query_params["run"] = [finish(service, backend, RunSpec()) for _ in range(2)]
    _assert_outlined(app.switch_page("pages/compare.py").run())
