"""The linked views: one layer in all of them, the choice of curves, one level, the open tree."""

import json
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from streamlit.testing.v1 import AppTest

from senseapp.app.common.state import pick_key
from senseapp.compressions import PruningConfig, SparsityConfig
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.service import Service
from tests.pages.conftest import finish, open_layers, texts
from tests.pages.records import FRAGILE, NAMES, NOT_PRUNABLE

STATE = "senseapp.session"


@pytest.fixture
def results(app: AppTest, finished_run: str) -> AppTest:
    return open_layers(app, finished_run)


def open_tab(app: AppTest, run_id: str, label: str) -> AppTest:
    if label in ("Network", "Histograms"):
        app.session_state[f"more.{run_id}"], label = label, "More"
    app.session_state[f"results.tab.{run_id}"] = label
    app.run()
    assert not app.exception
    return app


def chart(app: AppTest, number: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(app.get("vega_lite_chart")[number].proto.spec)
    return found


def outlined(app: AppTest) -> list[dict[str, Any]]:
    """Return the rows that the first chart of the page which frames any has a frame around."""
    drawings = [(element.proto, json.loads(element.proto.spec)) for element in app.get("vega_lite_chart")]
    proto, frame = next(
        (proto, layer)
        for proto, spec in drawings
        for layer in spec["layer"]
        if isinstance(layer.get("mark"), dict) and layer["mark"].get("filled") is False
    )
    drawn = next(item for item in proto.datasets if item.name == frame["data"]["name"])
    with pa.ipc.open_stream(drawn.data.data) as stream:
        rows: list[dict[str, Any]] = stream.read_all().to_pylist()
    return rows


def drawn_curves(app: AppTest) -> list[str]:
    domain: list[str] = chart(app)["layer"][-1]["encoding"]["color"]["scale"]["domain"]
    return domain


def test_a_layer_chosen_by_keyboard_is_shown_in_every_view(results: AppTest, finished_run: str) -> None:
    results.selectbox(key=f"results.layer.{finished_run}").set_value("layer1.0.conv2").run()
    for label in ("Layers", "Heat map", "Network"):
        open_tab(results, finished_run, label)
        assert "## layer1.0.conv2" in texts(results)
        assert "layer1.0.conv2" in set().union(*(row.values() for row in outlined(results)))
    assert "layer1.0.conv2" in drawn_curves(open_tab(results, finished_run, "Curves"))
    assert "weights of layer1.0.conv2 lie" in texts(open_tab(results, finished_run, "Histograms"))


def test_the_chosen_layer_follows_a_click_elsewhere(results: AppTest, finished_run: str) -> None:
    assert results.selectbox(key=f"results.layer.{finished_run}").value is None
    results.session_state[pick_key(finished_run)] = "fc"
    results.run()
    assert results.selectbox(key=f"results.layer.{finished_run}").value == "fc"
    results.button(key=f"panel.close.{finished_run}").click().run()
    assert results.selectbox(key=f"results.layer.{finished_run}").value is None


def test_curves_are_chosen_by_number_block_type_and_name(results: AppTest, finished_run: str) -> None:
    open_tab(results, finished_run, "Curves")
    assert len(drawn_curves(results)) == 5
    assert "5 of 6 curves are drawn" in texts(results)
    results.number_input(key=f"curves.number.{finished_run}").set_value(1).run()
    assert drawn_curves(results) == [FRAGILE]
    results.button_group(key=f"curves.{finished_run}").set_value("All").run()
    assert drawn_curves(results) == list(NAMES)
    results.multiselect(key=f"curves.blocks.{finished_run}").set_value(["layer1"]).run()
    assert drawn_curves(results) == ["layer1.0.conv1", "layer1.0.conv2"]
    results.multiselect(key=f"curves.blocks.{finished_run}").set_value([]).run()
    results.button_group(key=f"curves.types.{finished_run}").set_value(["Linear"]).run()
    assert drawn_curves(results) == ["fc"]
    results.text_input(key=f"curves.search.{finished_run}").set_value("conv").run()
    assert "No layer passes the filters" in texts(results)
    results.button_group(key=f"curves.types.{finished_run}").set_value([]).run()
    results.button_group(key=f"curves.{finished_run}").set_value("By name").run()
    results.multiselect(key=f"curves.layers.{finished_run}").set_value(["conv1"]).run()
    assert drawn_curves(results) == ["conv1"]


def values(app: AppTest) -> pd.DataFrame:
    return next(table.value for table in app.dataframe if "change_text" in table.value.columns)


@pytest.mark.parametrize(
    ("compression", "words"),
    [
        (SparsityConfig(granularity="filter"), "Whole filters are set to zero"),
        (PruningConfig(), "Whole channels are removed"),
    ],
)
def test_whole_filters_say_the_level_that_was_truly_reached(
    app: AppTest, service: Service, backend: Backend, compression: Any, words: str
) -> None:
    spec = RunSpec(sensitivity=SensitivitySpec(compression=compression, levels=(0.3, 0.5)))
    open_layers(app, finish(service, backend, spec))
    assert words in texts(app)
    assert set(values(app)["reached_text"]) == {"50.0 %"}


def nodes(app: AppTest) -> list[str]:
    found: list[str] = chart(app)["layer"][0]["encoding"]["y"]["scale"]["domain"]
    return found


def test_a_click_on_a_block_opens_it_and_picks_its_most_fragile_layer(results: AppTest, finished_run: str) -> None:
    open_tab(results, finished_run, "Network")
    assert "layer2.0" in nodes(results)
    assert FRAGILE not in nodes(results)
    results.session_state[STATE].blocks[finished_run].names |= {"layer2.0"}
    results.run()
    assert FRAGILE in nodes(results)
    assert NOT_PRUNABLE not in nodes(results)  # its own block is closed


def test_the_tree_opens_where_a_layer_was_picked_elsewhere(results: AppTest, finished_run: str) -> None:
    open_tab(results, finished_run, "Network")
    results.selectbox(key=f"results.layer.{finished_run}").set_value(NOT_PRUNABLE).run()
    assert NOT_PRUNABLE in nodes(results)
    results.number_input(key=f"network.depth.{finished_run}.").set_value(1).run()
    assert nodes(results) == ["conv1", "layer1", "layer2", "fc"]
    results.selectbox(key=f"network.block.{finished_run}").set_value("layer2.0").run()
    assert FRAGILE in nodes(results)


def test_a_run_that_a_newer_version_wrote_is_told_in_one_sentence(
    app: AppTest, finished_run: str, backend: Backend
) -> None:
    file = backend.store.folder(finished_run).path / "result.json"
    file.write_text(file.read_text().replace('"version":1', '"version":9', 1))
    open_layers(app, finished_run)
    assert not app.exception
    assert "has version 9; this senseapp reads versions 1 to 1. Update senseapp" in app.error[0].value
    assert not app.get("vega_lite_chart")


def test_every_chart_can_be_saved_in_three_forms_and_has_words_for_those_who_do_not_see_it(
    results: AppTest, finished_run: str
) -> None:
    results.session_state[pick_key(finished_run)] = FRAGILE
    for label in ("Layers", "Curves", "Heat map", "Network"):
        open_tab(results, finished_run, label)
        charts = results.get("vega_lite_chart")
        saved = [button.label for button in results.get("download_button") if not button.label.startswith("Download")]
        assert saved == len(charts) * ["PNG image", "SVG drawing", "CSV data"]
        assert all(len(element.proto.alt) > 10 for element in (*charts, *results.get("arrow_data_frame")))


def test_many_levels_are_slid_through(app: AppTest, service: Service, backend: Backend) -> None:
    levels = tuple(step / 20 for step in range(1, 20))
    run_id = finish(service, backend, RunSpec(sensitivity=SensitivitySpec(levels=levels)))
    open_layers(app, run_id)
    assert not app.exception
    app.select_slider(key=f"results.level.{run_id}").set_value(0.95).run()
    assert "What does each layer lose at 95 %?" in texts(app)
