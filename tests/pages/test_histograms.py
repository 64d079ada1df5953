"""The Histograms tab: ask, wait, look, pick."""

from streamlit.testing.v1 import AppTest

from senseapp.core.errors import MeasurementFailed
from senseapp.server.run_tasks import HistogramTask
from senseapp.server.service import Service
from senseapp.store.run_folder import RunFolder
from tests.distiller_tables import TABLE
from tests.pages.conftest import open_layers, texts
from tests.pages.records import FRAGILE, a_histogram


def open_tab(app: AppTest, run_id: str) -> AppTest:
    open_layers(app, run_id)
    app.session_state[f"results.tab.{run_id}"] = "More"
    app.session_state[f"more.{run_id}"] = "Histograms"
    return app.run()


def test_a_histogram_is_asked_for_and_its_failure_told(app, finished_run, backend, monkeypatch) -> None:
    def refuse(task: HistogramTask, folder: RunFolder, **_: object) -> None:
        raise MeasurementFailed("The layer never ran.")

    monkeypatch.setattr(HistogramTask, "carry_out", refuse)
    open_tab(app, finished_run)
    assert f"weights of {FRAGILE} lie" in texts(app)  # the most fragile, while none is picked
    app.button(key=f"histogram.start.{finished_run}").click().run()
    assert "1st in the queue" in app.get("progress")[0].proto.text
    backend.runner.run_next()
    app.run()
    assert app.error[0].value == "The layer never ran."
    assert not app.exception
    assert app.button(key=f"histogram.start.{finished_run}").label == "Try again"


def test_a_made_histogram_is_shown_with_its_numbers(app, finished_run, monkeypatch) -> None:
    monkeypatch.setattr(HistogramTask, "outcome", lambda task, folder: a_histogram())
    open_tab(app, finished_run)
    assert not app.exception
    for part in ("33.3 %", "16.667 %", "−0.6 to 0.55", "Become zero"):
        assert part in texts(app)
    assert len(app.get("vega_lite_chart")) == 1
    assert all(len(chart.proto.alt) > 10 for chart in app.get("vega_lite_chart"))
    saved = [button.label for button in app.get("download_button") if button.label != "Download report"]
    assert saved == ["PNG image", "SVG drawing", "CSV data"]


def test_the_picked_layer_is_looked_at_in_each_way(app: AppTest, finished_run: str) -> None:
    open_tab(app, finished_run)
    app.selectbox(key=f"results.layer.{finished_run}").set_value("fc").run()
    assert "weights of fc lie" in texts(app)
    app.button_group(key=f"values.{finished_run}").set_value("activations").run()
    assert "activations of fc lie" in texts(app)
    objectives = app.selectbox(key=f"sensitivity.{finished_run}").options
    assert objectives == ["Highest score", "Loss", "Mean output", "Nothing"]  # the loss, as there are labels
    assert app.button_group(key=f"values.{finished_run}").options == ["Weights", "Inputs", "Outputs"]
    assert app.select_slider(key=f"histogram.bits.{finished_run}").options == [str(bits) for bits in range(2, 9)]


def test_an_imported_run_says_that_it_has_no_values(app: AppTest, service: Service) -> None:
    open_tab(app, service.import_csv("resnet18", TABLE.encode()))
    assert "without a network" in app.info[0].value
    assert not app.exception
