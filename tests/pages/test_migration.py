"""What senseapp of November 2026 kept still opens, with the same figures: see fixtures/write_saved_home.py."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import streamlit as st
from streamlit.components.v2.component_manager import BidiComponentManager
from streamlit.testing.v1 import AppTest

from senseapp.app.common import backend as ui_backend
from senseapp.formats.plain import read_schedule
from senseapp.records.jobs import RunState
from senseapp.records.schedule import StrongestFound
from senseapp.server.backend import Backend
from senseapp.server.schedule_tasks import Verification
from senseapp.server.service import Service
from senseapp.store.run_file import read_run_file
from senseapp.store.run_store import RunStore
from tests.pages.conftest import ScriptedService, a_session, open_page

SAVED = Path(__file__).parents[1] / "fixtures" / "main_2026_11"
EXPECTED = json.loads((SAVED / "expected.json").read_text())
LINKS = EXPECTED["links"]
FINISHED = [title for title in EXPECTED if "headline" in EXPECTED[title]]
SHOWN_METRIC_OF_ESTIMATES = "kl"
PAGES = {"results": "results", "run": "results", "schedule": "targets", "compare": "compare", "runs": "runs"}


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Backend]:
    shutil.copytree(SAVED / "home", tmp_path / "home")
    made = Backend(tmp_path / "home", workers=0, data_roots=())
    yield made
    made.close()


@pytest.fixture
def service(backend: Backend) -> Service:
    return Service(backend)


@pytest.fixture
def app(backend: Backend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, components: BidiComponentManager) -> AppTest:
    st.cache_resource.clear()
    monkeypatch.setenv("SENSEAPP_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(ui_backend, "service", lambda: ScriptedService(backend))
    monkeypatch.setattr(ui_backend, "_let_the_page_paint", lambda: None)
    return a_session(components)


def in_words_of_today(headline: str) -> str:
    """Return a headline of then with the everyday word for KL divergence, which has no unit."""
    return re.sub(r"([\d.]+) nats of KL divergence", r"harm \1", headline).replace(" nats.", ".")


def deltas(result, metric: str) -> dict[str, float]:
    return {
        f"{item.layer}@{item.level:g}": change.delta
        for item in (result.measurements or result.estimates)
        for change in item.changes
        if change.metric == metric
    }


def check_result(result, expected) -> None:
    assert result.metric == expected["metric"]
    assert result.baseline == expected["baseline"]
    assert result.num_samples == expected["num_samples"]
    assert result.spec.sensitivity.mode == expected["mode"]
    compression = result.spec.sensitivity.compression
    assert {name: getattr(compression, name) for name in expected["settings"]} == expected["settings"]
    metric = result.metric if result.measurements else SHOWN_METRIC_OF_ESTIMATES
    assert deltas(result, metric) == expected["deltas"] != {}


def check_proofs(proofs, expected) -> None:
    assert len(proofs) == len(expected)
    for proof, told in zip(proofs, expected, strict=True):
        assert proof.predicted == told["predicted"]
        assert proof.delivered == told["delivered"]
        assert len(proof.notes) == told["notes"]
        assert {change.metric: change.delta for change in proof.kept_changes} == told["changes"]


def test_every_kind_of_run_is_there() -> None:
    assert set(FINISHED) == {
        *("sparsity by kernel", "sparsity by weight", "sparsity quick", "pruning", "quantization"),
        *("quantization quick", "imported"),
    }
    assert sum(len(EXPECTED[title]["proofs"]) for title in FINISHED) == 2
    assert sum(len(EXPECTED[title]["histograms"]) for title in FINISHED) == 2


@pytest.mark.parametrize("title", FINISHED)
def test_a_finished_run_has_the_figures_that_it_had(service: Service, title: str) -> None:
    expected = EXPECTED[title]
    run_id = expected["run"]
    record = service.run(run_id)
    assert (record.title, record.state, record.headline) == (title, RunState.DONE, expected["headline"])
    assert record.origin == expected["origin"]
    check_result(service.result(run_id), expected)
    check_proofs(service.validations(run_id), expected["proofs"])
    assert sorted(sum(histogram.counts) for histogram in service.histograms(run_id)) == sorted(expected["histograms"])
    for proof in service.validations(run_id):
        assert [
            path.suffix for path in service.work.compressed_model(Verification(run_id=run_id, schedule=proof.schedule))
        ] == [".safetensors"]


def test_a_search_for_the_strongest_schedule_keeps_its_outcome(backend: Backend) -> None:
    folder = backend.store.folder(EXPECTED["sparsity by kernel"]["run"])
    (path,) = folder.path.glob("strongest-*.json")
    found = folder.load(StrongestFound, path.stem.removeprefix("strongest-"))
    assert len(found.tried) == EXPECTED["strongest"]["tried"]
    assert found.schedule.achieved == EXPECTED["strongest"]["achieved"]


def test_the_store_lists_every_run(tmp_path: Path) -> None:
    shutil.copytree(SAVED / "home", tmp_path / "home")
    listed = RunStore(tmp_path / "home").list("local")
    assert {record.title for record in listed} == {*FINISHED, "interrupted"}
    assert all(record.spec.model.title == "demo" for record in listed if record.title != "imported")


def test_a_shared_link_opens_the_run_for_anybody(backend: Backend) -> None:
    somebody = Service(backend, "somebody else")
    assert somebody.run(LINKS["shared"]).read_only
    check_result(somebody.result(LINKS["shared"]), EXPECTED["pruning"])


def test_an_interrupted_run_goes_on_from_what_it_had(service: Service, backend: Backend) -> None:
    expected = EXPECTED["interrupted"]
    run_id, whole = expected["run"], expected["deltas"]
    kept = deltas(service.result(run_id), "loss")
    assert len(kept) == expected["kept"]
    assert kept.items() <= whole.items()
    service.resume(run_id)
    assert backend.runner.run_next()
    assert service.snapshot(run_id).state is RunState.DONE, service.snapshot(run_id).error
    found = deltas(service.result(run_id), "loss")
    assert found == pytest.approx(whole, rel=1e-3, abs=1e-6)  # another processor may round otherwise
    assert {name: found[name] for name in kept} == kept


@pytest.mark.parametrize("path", sorted(SAVED.glob("*.senserun.zip")), ids=lambda path: path.name)
def test_a_run_file_opens(service: Service, path: Path) -> None:
    title = path.name.removesuffix(".senserun.zip").replace("_", " ")
    expected = EXPECTED[title]
    with path.open("rb") as stream:
        read = read_run_file(stream, most_bytes=1_000_000)
        check_result(read.result, expected)
        assert read.head.title == title
    run_id = service.import_run(path)
    assert service.run(run_id).headline == in_words_of_today(expected["headline"])
    check_proofs(service.validations(run_id), expected["proofs"])
    assert len(service.histograms(run_id)) == len(expected["histograms"])


@pytest.mark.parametrize("path", sorted((SAVED / "schedules").iterdir()), ids=lambda path: path.name)
def test_a_schedule_file_opens(service: Service, path: Path) -> None:
    title = path.stem.replace("_", " ")
    expected = EXPECTED[f"schedule {title}"]
    schedule = read_schedule(path.read_bytes(), service.result(EXPECTED[title]["run"]).profile)
    assert schedule.model == expected["model"]
    assert {entry.layer: [entry.compression, entry.level] for entry in schedule.entries} == expected["levels"]
    if path.suffix != ".csv":  # rows alone do not tell
        assert schedule.method == expected["method"]


def take_the_nearest_target(app: AppTest, run_id: str) -> None:
    """Ask for what a few small layers can give, which the usual target is not."""
    assert app.slider
    for error in app.error:
        assert "The nearest target is" in error.value
    if app.error and "bits" not in app.error[0].value:  # the average of all weights is beyond that slider's end
        app.button(key=f"schedule.nearest.{run_id}").click().run()
        assert not app.exception
        assert not app.error


@pytest.mark.parametrize("link", LINKS["opened"])
def test_a_link_opens_its_page(app: AppTest, link: str) -> None:
    parts = urlsplit(link)
    query = parse_qs(parts.query)
    for name, values in query.items():
        app.query_params[name] = values
    open_page(app, f"pages/{PAGES[parts.path]}.py")
    assert not app.exception
    if parts.path == "schedule":
        take_the_nearest_target(app, query["run"][0])
    else:
        assert not app.error
    texts = " ".join(str(element.value) for element in (*app.title, *app.header, *app.markdown, *app.caption))
    named = [title for title in EXPECTED if EXPECTED[title].get("run") in query.get("run", [])]
    named += ["pruning"] if LINKS["shared"] in query.get("run", []) else []
    assert bool(query) == bool(named)
    for title in named:
        assert title in texts
    if parts.path == "compare" and len(named) > 1:
        assert app.session_state["metric.compare"] == query["metric"][0]
