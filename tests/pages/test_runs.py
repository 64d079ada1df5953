"""The Runs page: everything measured so far, and the Guide."""

import sys
import time
import tomllib
from dataclasses import replace

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Button

from senseapp.app.common import backend as ui_backend
from senseapp.app.runs.list import _pack, disk_line
from senseapp.compressions import PruningConfig
from senseapp.core.files import SITE
from senseapp.records.candidate import Delivery
from senseapp.records.jobs import RunState
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.service import Service
from senseapp.views.frames.comparison import small_bars
from senseapp.views.words import format as fmt
from tests.deployments import a_candidate, some_figures
from tests.pages.conftest import APP, finish, open_page, texts, tick

PAGE = "pages/runs.py"


def saving(app: AppTest) -> Button:
    return next(button for button in app.button if button.label == "Save")


def test_experts_read_the_name_of_a_compression(app: AppTest, service: Service, finished_run: str) -> None:
    service.set_expert(expert=True)
    open_page(app, PAGE)
    assert list(app.dataframe[0].value["compression"]) == ["Sparsity 25, 50, 75 %"]


def test_a_run_shows_its_headline_state_and_age_and_opens(app: AppTest, service: Service, finished_run: str) -> None:
    open_page(app, PAGE)
    (row,) = app.dataframe[0].value.to_dict("records")
    assert (row["title"], row["state"], row["compression"]) == ("demo", "Finished", "Zeros: 25, 50, 75 %")
    assert row["answers"].startswith("Most fragile: layer2.0.conv1")
    assert abs(time.time() - row["age"].timestamp()) < 60
    assert row["run"] == f"demo: {row['answers']}, just now"
    tick(app, service, finished_run)
    app.button(key=f"runs.open.{finished_run}").click().run()
    assert app.query_params["run"] == finished_run
    assert "## Most fragile: layer2.0.conv1" in texts(app)


def test_the_settings_of_a_run_fill_the_analyze_page(app: AppTest, service: Service, backend: Backend) -> None:
    run_id = finish(service, backend, RunSpec(sensitivity=SensitivitySpec(levels=(0.6,), metric="kl", seed=3)))
    open_page(app, PAGE)
    tick(app, service, run_id)
    app.button(key=f"runs.again.{run_id}").click().run()
    assert app.button_group(key="analyze.levels.sparsity").value == [0.6]
    assert app.selectbox(key="analyze.metric").value == "kl"
    assert app.number_input(key="analyze.options.seed").value == 3


def test_a_run_is_renamed_and_an_empty_title_is_refused(app: AppTest, service: Service, finished_run: str) -> None:
    open_page(app, PAGE)
    tick(app, service, finished_run)
    app.text_input(key=f"runs.title.{finished_run}").set_value("First try")
    app.text_input(key=f"runs.tags.{finished_run}").set_value("paper, best ,,paper")
    saving(app).click().run()
    assert service.run(finished_run).title == "First try"
    assert service.run(finished_run).tags == ("paper", "best")
    assert list(app.dataframe[0].value["tags"][0]) == ["paper", "best"]
    app.text_input(key=f"runs.title.{finished_run}").set_value("  ")
    saving(app).click().run()
    assert len(app.error) == 1
    assert service.run(finished_run).title == "First try"


def test_a_deleted_run_is_gone_everywhere(app: AppTest, service: Service, finished_run: str) -> None:
    open_page(app, "pages/results.py", run=finished_run)
    del app.query_params["run"]
    app.switch_page(PAGE).run()
    tick(app, service, finished_run)
    app.button(key=f"runs.delete.{finished_run}").click().run()
    assert service.runs() == ()
    assert "No run yet" in texts(app)
    app.switch_page("pages/results.py").run()
    assert "There are no results to show" in texts(app)


def test_a_deletion_is_undone_by_one_click_for_a_minute(app, service, finished_run, monkeypatch) -> None:
    open_page(app, PAGE)
    tick(app, service, finished_run)
    app.button(key=f"runs.delete.{finished_run}").click().run()
    assert service.runs() == ()
    app.button(key="runs.undo").click().run()
    assert [record.run_id for record in service.runs()] == [finished_run]
    tick(app, service, finished_run)
    app.button(key=f"runs.delete.{finished_run}").click().run()
    monkeypatch.setattr("senseapp.app.runs.list.time.monotonic", lambda: time.perf_counter() + 61 + 10**6)
    app.run()
    assert not [button for button in app.button if button.key == "runs.undo"]


def test_a_new_tab_opens_the_latest_run(app: AppTest, service: Service, backend: Backend) -> None:
    finish(service, backend, RunSpec())
    latest = finish(service, backend, RunSpec(sensitivity=SensitivitySpec(levels=(0.5,))))
    open_page(app, "pages/results.py")
    assert "There are no results to show" not in texts(app)
    assert "at 50 %" in texts(app)
    assert app.session_state["senseapp.session"].last_run == latest


def test_old_runs_come_on_request(app, service, backend, monkeypatch) -> None:
    monkeypatch.setattr("senseapp.app.runs.list._PAGE", 2)
    for _ in range(3):
        finish(service, backend, RunSpec(sensitivity=SensitivitySpec(levels=(0.5,))))
    open_page(app, PAGE)
    assert len(app.dataframe[0].value) == 2
    answers = iter([None])  # the small bars come just after the table was drawn without them
    monkeypatch.setattr(ui_backend, "bars_of", lambda _: next(answers, {}))
    app.button(key="runs.more").click().run()
    assert len(app.dataframe[0].value) == 3


def test_small_bars_are_what_layers_lose_in_network_order(service: Service, finished_run: str) -> None:
    result = service.result(finished_run)
    assert result is not None
    bars, (worst, change) = small_bars(result), result.ranked(0.5, "kl")[0]
    assert max(bars) == change.delta
    assert [item.layer for item in result.at(0.5)][bars.index(max(bars))] == worst.layer


def test_many_layers_share_as_many_small_bars_as_the_column_can_draw(service: Service, finished_run: str) -> None:
    result = service.result(finished_run)
    assert result is not None
    copies = [replace(item, layer=f"{item.layer}.{copy}") for copy in range(4) for item in result.measurements]
    wide = replace(result, measurements=(*result.measurements, *copies))
    losses = [max(0.0, item.change("kl").delta) for item in wide.at(0.5)]
    assert len(losses) == 30
    assert small_bars(wide) == [max(losses[start : start + 3]) for start in range(0, 30, 3)]


def test_the_guide_has_ten_entries_with_pictures_of_their_own(app: AppTest) -> None:
    guide = tomllib.loads((SITE / "assets" / "guide.toml").read_text("utf-8"))
    entries, pictures = guide["entries"], SITE / "assets" / "screenshots"
    open_page(app, "pages/guide.py")
    assert len(entries) == 10
    assert [heading.value for heading in app.header] == [*(entry["question"] for entry in entries), "Words"]
    assert len({entry["picture"] for entry in entries}) == len(app.image) == 10
    assert all((pictures / f"{entry['picture']}.png").stat().st_size < 400_000 for entry in entries)
    assert all(len(entry["caption"]) > 20 for entry in entries)


def test_runs_are_found_by_words_of_what_is_shown(app: AppTest, service: Service, backend: Backend) -> None:
    finish(service, backend, RunSpec(sensitivity=SensitivitySpec(compression=PruningConfig(), levels=(0.3,))))
    service.rename(finish(service, backend, RunSpec()), "Tuesday")
    open_page(app, PAGE)
    for text in ("PRUNING finished", "fewer channels"):
        app.text_input(key="runs.search").set_value(text).run()
        assert list(app.dataframe[0].value["compression"]) == ["Fewer channels: 30 %"]
    app.text_input(key="runs.search").set_value("tues").run()
    assert list(app.dataframe[0].value["title"]) == ["Tuesday"]
    app.text_input(key="runs.search").set_value("nothing like it").run()
    assert "No run has all of the words" in app.info[0].value


def test_the_disk_space_and_how_long_runs_are_kept_are_shown(app: AppTest, service: Service, finished_run: str) -> None:
    open_page(app, PAGE)
    size = fmt.bytes_size(service.run(finished_run).num_bytes)
    assert f"1 run, {size} of 8.19 GB used" in texts(app)
    assert "kept until deleted" in texts(app)
    assert disk_line(replace(service.disk_use(), keep_days=30), 2).endswith("deleted 30 days after the last change")


def test_a_shared_run_shows_its_results_and_offers_no_change(app, service, backend, finished_run, monkeypatch) -> None:
    link = service.share(finished_run, shared=True)
    service.introduce("Ann Example")
    monkeypatch.setattr(ui_backend, "service", lambda: type(service)(backend, "bob"))
    open_page(app, "pages/results.py", run=link)
    assert "Shared by Ann Example; you can look, not change." in texts(app)
    assert "## Most fragile: layer2.0.conv1" in texts(app)
    app.query_params["run"] = finished_run  # the id itself opens nothing
    app.run()
    assert "There is no such run" in app.error[0].value
    app.switch_page(PAGE).run()
    assert "No run yet" in texts(app)


def test_somebody_with_the_link_may_watch_a_run_but_not_cancel_it(app, service, backend, monkeypatch) -> None:
    run_id = service.start(RunSpec())
    link = service.share(run_id, shared=True)
    monkeypatch.setattr(ui_backend, "service", lambda: type(service)(backend, "bob"))
    open_page(app, "pages/results.py", run=link)
    assert "1st in the queue" in app.get("progress")[0].proto.text
    assert "Cancel" not in [button.label for button in app.button]
    service.cancel(run_id)
    app.run()
    assert "Resume" not in [button.label for button in app.button]


def test_a_run_is_downloaded_and_imported(app: AppTest, service: Service, finished_run: str) -> None:
    content = _pack(service, finished_run).read_bytes()
    service.rename(finished_run, "The first")
    open_page(app, PAGE)
    tick(app, service, finished_run)
    assert app.download_button(key=f"runs.download.{finished_run}").label.startswith("Download run")
    app.file_uploader(key="runs.take.file").upload("run.senserun.zip", content, "application/zip").run()
    app.button(key="runs.take").click().run()
    imported = service.runs()[0]
    assert app.query_params["run"] == imported.run_id
    assert "measured elsewhere" in texts(app)
    assert (imported.title, imported.headline) == ("demo", service.run(finished_run).headline)


def test_a_file_that_is_no_run_is_refused_in_words(app: AppTest, service: Service) -> None:
    open_page(app, PAGE)
    app.file_uploader(key="runs.take.file").upload("run.zip", b"PK\x03\x04 nothing", "application/zip").run()
    app.button(key="runs.take").click().run()
    assert "not a run file" in app.error[0].value
    assert "not a run file" in app.run().error[0].value  # the list of runs runs the page again by itself
    assert service.runs() == ()
    app.file_uploader(key="runs.take.file").upload("run.zip", b"PK\x03\x04 another", "application/zip").run()
    assert not app.error


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a folder that not even root can write to")
def test_a_home_that_cannot_be_used_is_said_on_every_page(monkeypatch: pytest.MonkeyPatch) -> None:
    st.cache_resource.clear()
    monkeypatch.setenv("SENSEAPP_HOME", "/sys/senseapp")
    app = AppTest.from_file(APP, default_timeout=30).run()
    assert [title.value for title in app.title] == ["senseapp cannot work here"]
    assert "Check that the disk has space and that its folder is writable" in app.error[0].value
    assert not app.exception


def test_runs_are_sorted_by_what_their_best_file_saves_of_its_own_network(app, service, backend) -> None:
    for size, whole in ((3000, 12000), (1000, 2000), (0, 0)):
        run_id = finish(service, backend, RunSpec())
        service.rename(run_id, f"file of {size}")
        if size:
            file = a_candidate(size=size, share=0.5, lost=0.0, metric="top1", original=some_figures(0.0, 1.0, whole))
            backend.store.folder(run_id).save("first", Delivery(candidates=(file,)))
    open_page(app, PAGE)
    assert list(app.dataframe[0].value["title"]) == ["file of 0", "file of 1000", "file of 3000"]  # the newest first
    app.button_group(key="order.runs").set_value("Most saved first").run()
    assert list(app.dataframe[0].value["title"]) == ["file of 3000", "file of 1000", "file of 0"]
    backend.store.update(service.runs()[-1].run_id, state=RunState.CANCELLED)  # its file is there all the same
    table = app.run().dataframe[0].value
    assert table[["state", "saved"]].to_numpy().tolist()[:2] == [["Cancelled", 75.0], ["Finished", 50.0]]
    assert list(table["time"]) == ["0.50 × (0.49 to 0.51)", "0.50 × (0.49 to 0.51)", ""]
