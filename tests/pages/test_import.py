"""An imported sensitivity table in every view."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.service import Service
from tests.distiller_tables import TABLE
from tests.pages.conftest import open_page


@pytest.fixture
def imported(service: Service) -> str:
    return service.import_csv("resnet18", TABLE)


def texts(app: AppTest) -> str:
    return " ".join(element.value for element in (*app.markdown, *app.caption))


def test_the_runs_page_takes_a_table_and_opens_its_results(app: AppTest, service: Service) -> None:
    open_page(app, "pages/runs.py")
    assert app.button(key="runs.import").disabled
    app.file_uploader(key="runs.import.file").set_value(("resnet18.csv", TABLE.encode(), "text/csv")).run()
    app.button_group(key="runs.import.granularity").set_value("filter").run()
    app.button(key="runs.import").click().run()
    assert not app.exception
    (record,) = service.runs()
    assert app.query_params["run"] == record.run_id
    assert "Most fragile: conv1, −28.5 points at 50 %" in texts(app)
    result = service.result(record.run_id)
    assert result is not None
    assert result.spec.sensitivity.compression.granularity == "filter"  # type: ignore[union-attr]


def test_a_bad_table_is_told_at_the_uploader(app: AppTest, service: Service) -> None:
    open_page(app, "pages/runs.py")
    app.file_uploader(key="runs.import.file").set_value(("bad.csv", b"a,b\n1,2\n", "text/csv")).run()
    app.button(key="runs.import").click().run()
    assert "lacks parameter, sparsity" in app.error[0].value
    assert service.runs() == ()


def test_every_view_copes_with_unknown_intervals_and_sizes(app: AppTest, imported: str) -> None:
    open_page(app, "pages/results.py", run=imported)
    assert "**Imported**" in texts(app)
    assert "0 images" not in texts(app)
    app.session_state["senseapp.session"].picked[imported] = "conv1"
    for label in ("Layers", "Curves", "Heat map", "Network", "Table"):
        app.session_state[f"results.tab.{imported}"] = label
        app.run()
        assert not app.exception
        assert not app.error
        assert "nan" not in texts(app)
    app.session_state[f"results.tab.{imported}"] = "Layers"
    app.run()
    assert "unknown (imported figures)" in texts(app)
    assert set(app.dataframe[0].value["interval_text"]) == {"unknown"}
    assert not app.dataframe[0].value["unclear"].any()


def test_the_schedule_of_an_import_speaks_of_layers_not_of_weights(app: AppTest, imported: str) -> None:
    open_page(app, "pages/targets.py", run=imported)
    assert not app.exception
    assert "Mean amount over layers" in texts(app)
    assert "Size of the weights" not in texts(app)
    assert "every layer counts alike" in texts(app)


def test_an_import_offers_no_settings_to_run_again(app: AppTest, imported: str) -> None:
    open_page(app, "pages/runs.py")
    assert "imported figures" in texts(app)
    assert not [button for button in app.button if button.key == f"runs.again.{imported}"]
