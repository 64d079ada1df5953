"""``values`` from a file with two outputs to pages: measured, estimated, scheduled, proven and shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from senseapp.prove.prove import validate
from senseapp.records.measurement import Status
from senseapp.records.schedule import ResourceBudget
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.service import Service
from senseapp.solve.methods import make_schedule
from tests.pages.conftest import finish, open_page
from tests.value_networks import write_network, write_pictures

NUM_PICTURES, NUM_MEASURED = 116, 16


@pytest.fixture
def backend(real_backend: Backend) -> Backend:
    return real_backend


@pytest.mark.slow
def test_boxes_and_prototypes_are_measured_scheduled_proven_and_shown(
    app: AppTest, service: Service, backend: Backend, tmp_path: Path
) -> None:
    network = write_network(tmp_path / "net.onnx", "boxes and prototypes")
    spec = RunSpec(
        model=ModelSpec(library="onnx", checkpoint=str(network), task="values"),
        data=DataSpec(kind="folder", path=str(write_pictures(tmp_path / "set", NUM_PICTURES))),
        sensitivity=SensitivitySpec(levels=(0.5, 0.9), num_samples=NUM_MEASURED, device="cpu"),
    )
    run_id = finish(service, backend, spec)
    result = service.result(run_id)
    assert not result.has_labels
    assert result.profile.num_classes == 2  # outputs
    assert all(item.status is Status.MEASURED for item in result.measurements)
    assert min(result.agreement.values()) > 0.9
    schedule = make_schedule(result, budget=ResourceBudget(kind="params", target=0.3))
    assert schedule.metric == "squared_error"
    proof = validate(result, schedule, repair=True, data_roots=(tmp_path,))
    assert proof.changed is not None
    assert proof.changed.pictures[0].caption.startswith("squared error ")
    proven = {change.metric: change for change in proof.result.changes}
    assert set(proven) == {"fidelity", "squared_error", "cosine_distance"}
    assert proven["fidelity"].num_samples == NUM_PICTURES - NUM_MEASURED
    assert proven["fidelity"].ci_low <= proven["fidelity"].delta <= proven["fidelity"].ci_high
    for page in ("results", "targets", "compare", "runs", "present"):
        open_page(app, f"pages/{page}.py", run=run_id)
        assert not app.exception, page
