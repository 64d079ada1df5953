"""The Leaderboard page: finished runs side by side."""

from streamlit.testing.v1 import AppTest

from senseapp.compressions import PruningConfig, QuantizationConfig
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.service import Service
from tests.pages.conftest import finish, open_page, wait_for_card

PAGE = "pages/leaderboard.py"


def test_without_a_finished_run_the_page_says_what_to_do(app: AppTest, service: Service) -> None:
    service.start(RunSpec())
    wait_for_card(open_page(app, PAGE))
    assert any("No finished run yet" in element.value for element in app.markdown)
    assert not app.dataframe


def test_runs_come_with_the_most_compressible_first(app: AppTest, service: Service, backend: Backend) -> None:
    quick = finish(service, backend, RunSpec(sensitivity=SensitivitySpec(mode="quick")))
    pruned = finish(service, backend, RunSpec(sensitivity=SensitivitySpec(compression=PruningConfig())))
    bits = finish(
        service, backend, RunSpec(sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(8.0, 4.0)))
    )
    service.start(RunSpec())  # waits, so it has no row
    wait_for_card(open_page(app, PAGE))
    table = app.dataframe[0].value
    assert set(table["link"]) == {f"results?run={run}" for run in (quick, pruned, bits)}
    removable = list(table["removable"])
    assert removable == sorted(removable, reverse=True, key=lambda share: -1 if share != share else share)
    by_link = table.set_index("link")
    of_bits = by_link.loc[f"results?run={bits}"]
    assert (of_bits["compression"], of_bits["counted_in"], of_bits["metric"]) == (
        "Quantization",
        "Top-1 accuracy",
        "Top-1 accuracy",
    )
    assert 0 < of_bits["removable"] <= 100
    assert of_bits["baseline"] == 98
    assert of_bits["images"] == 512
    assert "predicted" in " ".join(element.value for element in app.markdown)


def test_a_deleted_run_leaves_the_leaderboard(app: AppTest, service: Service, finished_run: str) -> None:
    wait_for_card(open_page(app, PAGE))
    assert len(app.dataframe[0].value) == 1
    service.delete(finished_run)
    wait_for_card(app.run())
    assert not app.dataframe
