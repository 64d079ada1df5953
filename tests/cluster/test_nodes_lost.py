"""A node or the head of the cluster dies in mid-run: nothing measured is lost, and the rest is measured elsewhere.

The cluster does not outlive this file: its second node dies in the first test and its head in the last.
"""

import itertools
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster

from senseapp.measure.session import Session
from senseapp.records.jobs import RunState
from senseapp.records.measurement import LayerMeasurement
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.execution import LiveRun
from senseapp.server.service import Service
from tests.fake_session import fake_calibration
from tests.ray_cluster import add_node, compare, kill_head

pytestmark = [pytest.mark.slow, pytest.mark.wide]

BEFORE = 5
SPEC = RunSpec(sensitivity=SensitivitySpec(levels=(0.4, 0.8), num_samples=24))


def test_a_node_killed_in_mid_run_and_a_cancel_change_nothing(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the app does it: a process of its own asks, loses a node, is cancelled; the rest is measured here."""
    monkeypatch.setenv("SENSEAPP_RAY_ADDRESS", cluster.address)
    (victim,) = cluster.worker_nodes
    backend = Backend(tmp_path, workers=0, data_roots=(), calibrate=fake_calibration)
    service = Service(backend)
    run_id = service.start(SPEC)
    journal = backend.store.folder(run_id).measurements
    act_after(
        {3: lambda: cluster.remove_node(victim, allow_graceful=False), 30: lambda: service.cancel(run_id)}, monkeypatch
    )
    backend.runner.run_next()
    assert len(cluster.worker_nodes) == 0
    assert service.snapshot(run_id).state is RunState.CANCELLED
    assert 30 <= journal.count() < 46  # most of it after the node was gone
    told = service.result(run_id).environment
    assert (told["cluster"], told["device"], told["workers"]) == (f"Ray {ray.__version__}", "cpu", "2")
    assert asking() == []

    service.resume(run_id, here=True)
    backend.runner.run_next()
    assert service.snapshot(run_id).state is RunState.DONE
    shared = service.result(run_id)
    local = Session.open(shared.spec, earlier=shared)
    compare(list(shared.measurements), list(local.measure()))
    assert shared.baseline == pytest.approx(local.baseline, abs=1e-6)
    backend.close()


def act_after(actions: dict[int, Callable[[], object]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Act once so many measurements have been told; estimates, which are told first, are made on this machine."""
    tell, number = LiveRun.measured, itertools.count(1)

    def tell_and_act(live: LiveRun, measurement: LayerMeasurement) -> None:
        tell(live, measurement)
        if not measurement.estimated:
            actions.get(next(number), lambda: None)()

    monkeypatch.setattr(LiveRun, "measured", tell_and_act)


def asking() -> list[int]:
    """Return the processes of ours that talk to a cluster."""
    return [child.pid for child in psutil.Process().children() if "distributed.child" in " ".join(child.cmdline())]


def test_the_head_dies_and_the_run_goes_on_here(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_node(cluster)  # in place of the one that the test before has ended
    monkeypatch.setenv("SENSEAPP_RAY_ADDRESS", cluster.address)
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "2")
    backend = Backend(tmp_path, workers=0, data_roots=(), calibrate=fake_calibration)
    service = Service(backend)
    run_id = service.start(SPEC)
    journal = backend.store.folder(run_id).measurements
    act_after({BEFORE: lambda: kill_head(cluster)}, monkeypatch)
    backend.runner.run_next()
    snapshot = service.snapshot(run_id)
    assert snapshot.state is RunState.FAILED
    assert snapshot.error == (
        "The connection to the cluster was lost. What was measured is kept: try again once it is back, or go on on "
        "this machine alone."
    )
    assert BEFORE <= journal.count() < snapshot.total
    assert not [child for child in psutil.Process().children() if "job_process" in " ".join(child.cmdline())]

    service.resume(run_id, here=True)
    backend.runner.run_next()
    assert service.snapshot(run_id).state is RunState.DONE
    found = service.result(run_id)
    compare(list(found.measurements), list(Session.open(found.spec, earlier=found).measure()))
    backend.close()
