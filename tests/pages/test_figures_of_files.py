"""What pages and the report say of files is said of candidates: other records may change, and no word changes.

The numbers of every other record of a run (recommendation, proof, schedule) are walked and scaled; what is read then
differs in sentences that say "predicted" only. As a control, the figures of the candidate are scaled too.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.core.codec import decode, encode
from senseapp.records.candidate import Candidate, Delivery
from senseapp.records.recommendation import Recommendation
from senseapp.records.schedule import ResourceBudget, Schedule, ScheduleEntry, TriedTarget, ValidationResult
from senseapp.server.backend import Backend
from senseapp.server.delivery_tasks import RecommendationTask
from senseapp.server.service import Service
from senseapp.views.report.document import ReportContents, build_report
from tests.deployments import a_candidate
from tests.pages.conftest import go_back, open_page, wait_for_card
from tests.pages.records import NAMES, change

PAGES = {"Runs": "pages/runs.py", "Present": "pages/present.py"}
EXEMPT = ("predicted", "free on the disk")
CHANGES = (change("top1", 0.0311, 0.0121), change("agreement", 0.0411, 0.0131), change("kl", 0.0511, 0.0141))


def a_recommendation() -> Recommendation:
    """Return the record that a search leaves, with figures that no candidate has."""
    entries = tuple(
        ScheduleEntry(layer=name, members=(name,), compression="sparsity", level=0.41, predicted_damage=0.0171)
        for name in NAMES
    )
    schedule = Schedule(
        model="demo",
        method="optimal",
        entries=entries,
        metric="top1",
        budget=ResourceBudget(kind="params", target=0.41),
        achieved={"params": 0.413, "macs": 0.397, "bytes": 0.411},
        predicted_damage=0.0373,
    )
    proof = ValidationResult(
        schedule=schedule,
        changes=CHANGES,
        uniform=CHANGES,
        predicted=0.0373,
        sizes={"file_bytes": (977_000.0, 433_000.0), "params": (233_000.0, 137_000.0)},
        files={".safetensors": 433_000},
    )
    tried = tuple(TriedTarget(figure=figure, changes=CHANGES) for figure in (0.21, 0.43, 0.67))
    return Recommendation(
        kind="params", metric="top1", allowed_drop=0.01, tried=tried, uniform=tried, schedule=schedule, validation=proof
    )


def scaled(record: Any, share: float) -> Any:
    """Return ``record`` with every number between its ends changed; counts of images stay."""

    def walk(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: walk(inner, key) for key, inner in value.items()}
        if isinstance(value, list):
            return [walk(inner, name) for inner in value]
        counted = isinstance(value, bool) or not isinstance(value, int | float) or name == "num_samples"
        return value if counted else type(value)(value * share)

    encoded = encode(record)
    return decode(encoded | {"data": walk(encoded["data"])}, type(record))


def read(app: AppTest) -> list[str]:
    """Return every text that a person reads on a page, cells of tables among them."""
    texts = [str(each.value) for kind in ("title", "header", "markdown", "caption", "metric") for each in app.get(kind)]
    texts += [str(each.proto.label) for each in app.get("download_button")]
    for table in app.dataframe:
        texts += [f"{column}: {cell}" for column in table.value for cell in table.value[column]]
    return texts


def of_report(service: Service, run_id: str, candidate: Candidate) -> list[str]:
    """Return the texts of the report above its schedules, which say of each figure whether it is predicted."""
    contents = ReportContents(title="demo", result=service.result(run_id), made_seconds=0.0, candidates=(candidate,))
    page = build_report(contents).partition("<script")[0]
    return [text.strip() for text in re.split(r"<[^>]+>", page) if text.strip()]


@pytest.fixture
def texts(app: AppTest, service: Service, backend: Backend, finished_run: str) -> Callable[..., dict[str, list[str]]]:
    """Reads every place that shows files of a run with these records."""

    def read_with(candidate: Candidate, found: Recommendation) -> dict[str, list[str]]:
        folder, task = backend.store.folder(finished_run), RecommendationTask(run_id=finished_run)
        folder.save(task.key, found)
        assert found.validation is not None
        proof = task.proof(a_recommendation())
        assert proof is not None
        folder.save(proof.key, found.validation)
        folder.save("f" * 16, Delivery(candidates=(candidate,)))
        seen = {name: read(wait_for_card(open_page(app, page, run=finished_run))) for name, page in PAGES.items()}
        for screen in "2345":
            seen["Present"] += read(go_back(app, run=finished_run, screen=screen))
        seen["Compare"] = read(open_page(app, "pages/compare.py", run=finished_run))
        seen["report"] = of_report(service, finished_run, candidate)
        return seen

    return read_with


@pytest.mark.wide
def test_no_record_but_a_candidate_has_a_word_on_a_file(texts) -> None:
    candidate = a_candidate(metric="top1", size=311_000, share=0.83, lost=0.004)
    found = a_recommendation()
    before, others = texts(candidate, found), texts(candidate, scaled(found, 0.9))
    for place, said in before.items():
        differ = set(said) ^ set(others[place])
        assert [text for text in differ if not any(word in text.lower() for word in EXEMPT)] == [], place
    changed = texts(replace(candidate, figures=replace(candidate.figures, file_bytes=123_000)), found)
    assert [place for place in before if changed[place] == before[place]] == []
