"""The Runs page: everything measured so far, and the Guide."""

from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Button

from senseapp.service import Backend, Service
from senseapp.spec import RunSpec, SensitivitySpec
from senseapp.ui.guide import ENTRIES, GLOSSARY
from tests.pages.conftest import finish, open_page

PAGE = "pages/runs.py"


def texts(app: AppTest) -> str:
    return " ".join(element.value for element in (*app.markdown, *app.caption))


def saving(app: AppTest) -> Button:
    return next(button for button in app.button if button.label == "Save")


def test_without_a_run_the_page_says_what_to_do(app: AppTest) -> None:
    open_page(app, PAGE)
    assert "No run yet" in texts(app)


def test_a_run_shows_its_headline_state_and_age_and_opens(app: AppTest, finished_run: str) -> None:
    open_page(app, PAGE)
    for part in ("**demo**", "Finished", "Most fragile: layer2.0.conv1", "Sparsity 25, 50, 75 %", "just now"):
        assert part in texts(app)
    app.button(key=f"runs.open.{finished_run}").click().run()
    assert app.query_params["run"] == finished_run
    assert app.tabs


def test_the_settings_of_a_run_fill_the_analyze_page(app: AppTest, service: Service, backend: Backend) -> None:
    run_id = finish(service, backend, RunSpec(sensitivity=SensitivitySpec(levels=(0.6,), metric="kl", seed=3)))
    open_page(app, PAGE)
    app.button(key=f"runs.again.{run_id}").click().run()
    assert app.button_group(key="analyze.levels.sparsity").value == [0.6]
    assert app.selectbox(key="analyze.metric").value == "kl"
    assert app.number_input(key="analyze.options.seed").value == 3


def test_a_run_is_renamed_and_an_empty_title_is_refused(app: AppTest, service: Service, finished_run: str) -> None:
    open_page(app, PAGE)
    app.text_input(key=f"runs.title.{finished_run}").set_value("First try")
    saving(app).click().run()
    assert service.run(finished_run).title == "First try"
    app.text_input(key=f"runs.title.{finished_run}").set_value("  ")
    saving(app).click().run()
    assert len(app.error) == 1
    assert service.run(finished_run).title == "First try"


def test_a_deleted_run_is_gone_everywhere(app: AppTest, service: Service, finished_run: str) -> None:
    open_page(app, "pages/results.py", run=finished_run)
    del app.query_params["run"]
    app.switch_page(PAGE).run()
    app.button(key=f"runs.delete.{finished_run}").click().run()
    assert service.runs() == ()
    assert "No run yet" in texts(app)
    app.switch_page("pages/results.py").run()
    assert "There are no results to show" in texts(app)


def test_old_runs_come_on_request(app: AppTest, service: Service, backend: Backend) -> None:
    for _ in range(22):
        finish(service, backend, RunSpec(sensitivity=SensitivitySpec(levels=(0.5,))))
    open_page(app, PAGE)
    assert sum("Most fragile" in element.value for element in app.markdown) == 20
    app.button(key="runs.more").click().run()
    assert sum("Most fragile" in element.value for element in app.markdown) == 22


def test_the_guide_has_ten_entries_and_six_words(app: AppTest) -> None:
    open_page(app, "pages/guide.py")
    assert (len(ENTRIES), len(GLOSSARY)) == (10, 6)
    assert [heading.value for heading in app.subheader] == [*(entry.question for entry in ENTRIES), "Words"]
