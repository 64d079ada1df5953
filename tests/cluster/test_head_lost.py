"""The head of the cluster dies in mid-run: one sentence, nothing measured is lost, and the rest is measured here."""

from __future__ import annotations

import itertools
from pathlib import Path

import psutil
import pytest

from senseapp.results import RunState
from senseapp.sensitivity import Session, arithmetic_of
from senseapp.service import Backend, Service
from senseapp.spec import RunSpec, SensitivitySpec
from senseapp.store.journal import Journal
from tests.fake_session import fake_calibration
from tests.ray_cluster import compare, kill_head, two_nodes

BEFORE = 5


def test_the_head_dies_and_the_run_goes_on_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with two_nodes(gone_seconds=1) as cluster:
        monkeypatch.setenv("SENSEAPP_RAY_ADDRESS", cluster.address)
        monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "2")
        backend = Backend(tmp_path, workers=0, data_roots=(), calibrate=fake_calibration)
        service = Service(backend)
        run_id = service.start(RunSpec(sensitivity=SensitivitySpec(levels=(0.4, 0.8), num_samples=48)))
        journal = backend.store.folder(run_id).measurements
        append, stored = type(journal).append, itertools.count(1)

        def append_and_kill(to: Journal, measurement: object) -> None:
            append(to, measurement)
            if next(stored) == BEFORE:
                kill_head(cluster)

        monkeypatch.setattr(type(journal), "append", append_and_kill)
        backend.runner.run_next()
        snapshot = service.snapshot(run_id)
        assert snapshot.state is RunState.FAILED
        assert snapshot.error == (
            "The connection to the cluster was lost. What was measured is kept: try again once it is back, or go on on "
            "this machine alone."
        )
    kept = journal.count()
    assert BEFORE <= kept < snapshot.total
    assert not [child for child in psutil.Process().children() if "job_process" in " ".join(child.cmdline())]

    service.resume(run_id, here=True)
    backend.runner.run_next()
    assert service.snapshot(run_id).state is RunState.DONE
    found = service.result(run_id)
    layout, span_images = arithmetic_of(found)
    compare(list(found.measurements), list(Session.open(found.spec, layout=layout, span_images=span_images).measure()))
    backend.close()
