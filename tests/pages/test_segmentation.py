"""Segmentation on the pages: a network of the library, masks beside pictures, and what people read of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.descriptions import SOURCES
from senseapp.prove.prove import validate
from senseapp.records.measurement import Status
from senseapp.records.schedule import ResourceBudget
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.service import Service
from senseapp.solve.methods import make_schedule
from senseapp.tasks import SEGMENTATION
from tests import toy_segmentation
from tests.pages.conftest import ScriptedInputs, finish, open_page, wait_for_card
from tests.pictures import write_folder

NUM_PICTURES, NUM_MEASURED = 116, 16


@pytest.fixture(autouse=True)
def _registered(registries: None) -> None:
    SOURCES.register(toy_segmentation.SOURCE)


@pytest.fixture
def backend(real_backend: Backend) -> Backend:
    return real_backend


def said(app: AppTest) -> str:
    return " ".join(each.value for each in (*app.caption, *app.markdown, *app.title))


@pytest.mark.slow
def test_a_run_is_measured_proven_and_read_in_pixels(
    app: AppTest, service: Service, backend: Backend, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "set", toy_segmentation.picture_files(NUM_PICTURES))
    spec = RunSpec(
        model=ModelSpec(library=toy_segmentation.SOURCE.name, name="rectangles", task=SEGMENTATION.name),
        data=DataSpec(kind="folder", path=str(folder)),
        sensitivity=SensitivitySpec(levels=(0.5, 0.9), num_samples=NUM_MEASURED, device="cpu"),
    )
    run_id = finish(service, backend, spec)
    result = service.result(run_id)
    assert all(item.status is Status.MEASURED for item in result.measurements)
    assert {change.metric for item in result.measurements for change in item.changes} == {
        "pixel_accuracy", "pixel_kl", "pixel_agreement"
    }  # fmt: skip
    assert min(result.agreement.values()) > 0.4  # Spearman of three layers
    schedule = make_schedule(result, budget=ResourceBudget(kind="params", target=0.5))
    proof = validate(result, schedule, repair=True, data_roots=(tmp_path,))
    proven = {change.metric: change for change in proof.result.changes}
    assert proven["miou"].num_samples == NUM_PICTURES - NUM_MEASURED
    assert proven["miou"].ci_low <= proven["miou"].delta <= proven["miou"].ci_high
    assert proof.changed is not None
    assert proof.changed.sentence.startswith("Of 100 pixels, ")
    assert [title for title, _ in proof.changed.pictures[0].drawn] == ["original", "compressed", "label"]
    for page in ("results", "targets", "compare", "runs", "present"):
        open_page(app, f"pages/{page}.py", run=run_id)
        assert not app.exception, page


@pytest.mark.slow
def test_the_library_tells_the_task_and_masks_are_shown(
    app: AppTest, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path / "set", toy_segmentation.picture_files(5))
    monkeypatch.setenv("SENSEAPP_DATA_ROOTS", str(tmp_path))
    scripted = ScriptedInputs.preview
    monkeypatch.setattr(ScriptedInputs, "preview", lambda self, spec: replace(scripted(self, spec), score=0.5))
    app.run()
    app.segmented_control(key="analyze.model.source").set_value("Library").run()
    app.text_input(key="analyze.model.library.search").set_value("lraspp").run()
    app.radio(key="analyze.model.library.entry").set_value("torchvision/lraspp_mobilenet_v3_large").run()
    app.toggle(key="analyze.model.pretrained").set_value(False).run()
    assert SEGMENTATION.label in said(app)
    assert not [each for each in app.selectbox if each.key == "analyze.model.task"]
    app.button_group(key="analyze.data.source").set_value("Server folder").run()
    app.text_input(key="analyze.data.folder").set_value(str(folder)).run()
    wait_for_card(app.run())
    assert not app.exception
    assert "5 images · with masks" in said(app)
    assert "Uncompressed, Mean IoU is 50.0 % over" in said(app)
