"""The Network tab: open, pick, see the layer."""

from __future__ import annotations

import json

from streamlit.testing.v1 import AppTest

from senseapp.app.common.state import pick_key
from tests.pages.conftest import open_layers
from tests.pages.records import FRAGILE


def nodes(app: AppTest) -> list[str]:
    spec = json.loads(app.get("vega_lite_chart")[0].proto.spec)
    found: list[str] = spec["layer"][0]["encoding"]["y"]["scale"]["domain"]
    return found


def test_the_tree_opens_block_by_block_and_a_picked_layer_shows(app: AppTest, finished_run: str) -> None:
    open_layers(app, finished_run)
    app.session_state[f"results.tab.{finished_run}"] = "More"
    app.run()
    assert not app.exception
    assert nodes(app) == ["conv1", "layer1", "layer1.0", "layer2", "layer2.0", "fc"]
    app.number_input(key=f"network.depth.{finished_run}.").set_value(1).run()
    assert nodes(app) == ["conv1", "layer1", "layer2", "fc"]
    app.selectbox(key=f"network.block.{finished_run}").set_value("layer2.0").run()
    assert FRAGILE in nodes(app)
    app.session_state[pick_key(finished_run)] = FRAGILE
    app.run()
    assert any(f"## {FRAGILE}" == element.value for element in app.markdown)
    assert all(len(chart.proto.alt) > 10 for chart in app.get("vega_lite_chart"))
