"""Bringing the picked row into view, within what the security policy lets pages do."""

from __future__ import annotations

import base64
import hashlib

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.app.common.figure import place_of
from senseapp.app.common.notices import INLINE_SCRIPTS
from senseapp.app.server.guards import content_security_policy


@pytest.mark.parametrize(("layer", "place"), [("a", 0.125), ("d", 0.875), ("", None), ("e", None)])
def test_a_row_stands_in_the_middle_of_its_part_of_the_chart(layer: str, place: float | None) -> None:
    assert place_of(layer, ["a", "b", "c", "d"]) == place


def test_the_policy_lets_the_script_run_that_the_page_holds() -> None:
    def page() -> None:
        from senseapp.app.common.notices import reveal

        reveal("bars_frame", 1 / 3)

    (element,) = AppTest.from_function(page).run().get("html")
    body = element.proto.body
    assert 'data-frame="bars_frame" data-place="0.3333"' in body
    script = body.split("<script>")[1].split("</script>")[0]
    assert script == INLINE_SCRIPTS["reveal"]
    found = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"'sha256-{found}'" in content_security_policy()
