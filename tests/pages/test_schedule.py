"""The Schedule page: sliders, bars, figures and target files."""

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.export import FORMATS
from senseapp.service import Backend, Service
from senseapp.spec import QuantizationConfig, RunSpec, SensitivitySpec
from tests.pages.conftest import finish, open_page

PAGE = "pages/targets.py"


@pytest.fixture
def schedule(app: AppTest, finished_run: str) -> AppTest:
    open_page(app, PAGE, run=finished_run)
    assert not app.exception
    return app


def texts(app: AppTest) -> str:
    return " ".join(element.value for element in (*app.markdown, *app.caption))


def preview(app: AppTest) -> str:
    return str(app.code[0].value)


def test_the_target_moves_the_figures_at_once(schedule: AppTest, finished_run: str) -> None:
    assert "100 % → 49" in texts(schedule)
    schedule.slider(key=f"schedule.target.{finished_run}").set_value(70).run()
    assert "100 % → 29" in texts(schedule)
    assert "Predicted KL divergence" in texts(schedule)


def test_the_classic_rule_has_a_gamma(schedule: AppTest, finished_run: str) -> None:
    assert len(schedule.slider) == 2
    schedule.button_group(key=f"schedule.method.{finished_run}").set_value("gamma").run()
    assert schedule.slider(key=f"schedule.gamma.{finished_run}").value == 1.5
    assert '"method": "gamma"' in preview(schedule)


def test_a_target_that_cannot_be_met_names_the_nearest(schedule: AppTest, finished_run: str) -> None:
    schedule.slider(key=f"schedule.limits.{finished_run}").set_value((10, 40)).run()
    assert "The nearest target is" in schedule.error[0].value
    assert schedule.slider(key=f"schedule.target.{finished_run}").value == 50
    schedule.slider(key=f"schedule.target.{finished_run}").set_value(30).run()
    assert not schedule.error


@pytest.mark.parametrize("name", ["json", "csv", "yaml"])
def test_each_format_says_who_reads_it_and_shows_its_first_lines(
    schedule: AppTest, finished_run: str, name: str
) -> None:
    schedule.selectbox(key=f"schedule.format.{finished_run}").set_value(name).run()
    assert FORMATS[name].reader in texts(schedule)
    assert "layer" in preview(schedule)
    labels = [button.label for button in schedule.get("download_button")]
    assert labels == [f"Download {FORMATS[name].title}", "Download every format (zip)"]


def test_bits_have_an_average_and_limits_of_their_own(app: AppTest, service: Service, backend: Backend) -> None:
    spec = RunSpec(sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(8, 4, 2)))
    run_id = finish(service, backend, spec)
    open_page(app, PAGE, run=run_id)
    assert "32 → 4.00" in texts(app) or "32 → 3." in texts(app)
    app.slider(key=f"schedule.bits.{run_id}").set_value(6.0).run()
    assert not app.exception
    assert "32 → 4.00" not in texts(app)
