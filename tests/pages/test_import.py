"""An imported sensitivity table in every view."""

from collections.abc import Iterator

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.app.common.state import pick_key
from senseapp.server.service import Service
from senseapp.views.frames.results import measurement_frame
from tests.distiller_tables import TABLE
from tests.pages.conftest import open_layers, open_page, texts, tick


@pytest.fixture
def imported(service: Service) -> str:
    return service.import_csv("resnet18", TABLE.encode())


def test_the_runs_page_takes_a_table_and_opens_its_results(app: AppTest, service: Service) -> None:
    open_page(app, "pages/runs.py")
    assert app.button(key="runs.import").disabled
    app.file_uploader(key="runs.import.file").set_value(("resnet18.csv", TABLE.encode(), "text/csv")).run()
    app.button_group(key="runs.import.granularity").set_value("filter").run()
    app.button(key="runs.import").click().run()
    assert not app.exception
    (record,) = service.runs()
    assert app.query_params["run"] == record.run_id
    assert "Most fragile: conv1 loses 28.5 points at 50 %" in texts(app)
    result = service.result(record.run_id)
    assert result is not None
    assert result.spec.sensitivity.compression.granularity == "filter"  # type: ignore[union-attr]


def test_a_bad_table_is_told_at_the_uploader(app: AppTest, service: Service) -> None:
    open_page(app, "pages/runs.py")
    app.file_uploader(key="runs.import.file").set_value(("bad.csv", b"a,b\n1,2\n", "text/csv")).run()
    app.button(key="runs.import").click().run()
    assert "lacks parameter, sparsity" in app.error[0].value
    assert service.runs() == ()


def choose_table(app: AppTest, text: str) -> None:
    open_page(app, "pages/runs.py")
    app.file_uploader(key="runs.import.file").set_value(("resnet18.csv", text.encode(), "text/csv")).run()


def name_the_model(app: AppTest) -> None:
    """Pick torchvision/resnet18; the scripted service knows every model by the layers in ``records.py``."""
    app.toggle(key="runs.import.named").set_value(True).run()
    app.text_input(key="runs.import.model.search").set_value("resnet18").run()
    app.radio(key="runs.import.model.entry").set_value("torchvision/resnet18").run()


def imported_with_its_model(app: AppTest, service: Service, text: str) -> str:
    choose_table(app, text)
    name_the_model(app)
    app.button(key="runs.import").click().run()
    assert not app.exception
    assert not app.error
    return service.runs()[0].run_id


def test_no_model_is_asked_for_until_it_is_wanted_and_then_one_must_be_picked(app: AppTest) -> None:
    choose_table(app, TABLE)
    assert not [field for field in app.text_input if field.key == "runs.import.model.search"]
    assert not app.button(key="runs.import").disabled
    app.toggle(key="runs.import.named").set_value(True).run()
    assert app.button(key="runs.import").disabled
    name_the_model(app)
    assert not app.button(key="runs.import").disabled


def opened_views(app: AppTest, run_id: str) -> Iterator[str]:
    """Yield the name of each view of a layer once it is open."""
    app.session_state[pick_key(run_id)] = "conv1"
    for label in ("Layers", "Curves", "Heat map", "More"):
        app.session_state[f"results.tab.{run_id}"] = label
        app.run()
        assert not app.exception
        assert not app.error
        yield label


def test_the_model_gives_every_view_its_sizes(app: AppTest, service: Service) -> None:
    run_id = imported_with_its_model(app, service, TABLE)
    assert app.query_params["run"] == run_id
    open_page(app, "pages/results.py", run=run_id)
    app.session_state[f"results.show.layers.{run_id}"] = True
    app.session_state[f"results.show.details.{run_id}"] = True
    for _ in opened_views(app, run_id):
        assert "sizes of demo" in texts(app)
        assert "unknown (imported figures)" not in texts(app)
        assert "random" not in texts(app)


def test_the_schedule_begins_with_a_target_that_can_be_met(app: AppTest, service: Service) -> None:
    run_id = service.import_csv("resnet18", TABLE.replace(",0.5,", ",0.45,").encode())
    open_page(app, "pages/targets.py", run=run_id)
    assert not app.exception
    assert not app.error
    assert app.slider(key=f"schedule.target.{run_id}").value == 30


def test_parameters_that_the_model_lacks_are_named_and_the_rest_is_imported(app: AppTest, service: Service) -> None:
    run_id = imported_with_its_model(app, service, TABLE.replace("module.fc", "module.head"))
    assert "1 of the 3 parameters left out, as demo lacks them (head)" in texts(app)
    assert "Most fragile: conv1 loses 28.5 points at 50 %" in texts(app)
    assert service.snapshot(run_id).done == 4


def test_another_model_is_told_at_the_button_and_leaves_no_run(app: AppTest, service: Service) -> None:
    choose_table(app, TABLE.replace("conv1", "stem").replace("module.fc", "module.head"))
    name_the_model(app)
    app.button(key="runs.import").click().run()
    (error,) = app.error
    assert error.value.startswith("None of the 3 parameters is in demo")
    assert service.runs() == ()


def test_every_view_copes_with_unknown_intervals_and_sizes(app: AppTest, service: Service, imported: str) -> None:
    open_layers(app, imported, **{"show-details": "yes"})
    assert "**Imported:" in texts(app)
    assert "0 images" not in texts(app)
    for _ in opened_views(app, imported):
        assert "nan" not in texts(app)
    app.session_state[f"results.tab.{imported}"] = "Layers"
    app.run()
    assert "unknown (imported figures)" in texts(app)
    assert set(app.dataframe[0].value["95 % interval"]) == {"unknown"}
    result = service.result(imported)
    assert result is not None
    assert not measurement_frame(result, "top1")["unclear"].any()


def test_the_schedule_of_an_import_speaks_of_layers_and_offers_no_file(app: AppTest, imported: str) -> None:
    open_page(app, "pages/targets.py", run=imported)
    assert not app.exception
    keys = {button.key for button in app.button}
    assert not keys & {f"schedule.verify.{imported}", f"schedule.deploy.{imported}"}
    assert "no model here to check or to make a file of" in texts(app)
    assert "it is small" not in texts(app)
    assert "Mean amount over layers" in texts(app)
    assert "Size of the weights, counted" not in texts(app)
    assert "every layer counts alike" in texts(app)


def test_an_import_offers_no_settings_to_run_again(app: AppTest, service: Service, imported: str) -> None:
    open_page(app, "pages/runs.py")
    tick(app, service, imported)
    assert "imported figures" in texts(app)
    assert app.button(key=f"runs.open.{imported}")
    assert not [button for button in app.button if button.key == f"runs.again.{imported}"]
