"""The app with ``SENSEAPP_RAY_ADDRESS`` set: the same one button, and two workers measure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster
from streamlit.testing.v1 import AppTest

from senseapp.runs.backend import Backend
from senseapp.runs.service import Service
from tests.fake_session import fake_calibration
from tests.pages.conftest import app as app
from tests.pages.conftest import components as components
from tests.pages.conftest import open_page, wait_for_card

pytestmark = pytest.mark.slow


@pytest.fixture
def backend(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    """The backend of a server that finds a cluster in its environment, with the real engine; works when told to."""
    monkeypatch.setenv("SENSEAPP_RAY_ADDRESS", cluster.address)
    made = Backend(tmp_path / "home", workers=0, data_roots=(), calibrate=fake_calibration)
    yield made
    made.close()


@pytest.fixture
def service(backend: Backend) -> Service:
    return Service(backend)


def test_the_button_runs_on_the_cluster(app: AppTest, service: Service, backend: Backend) -> None:
    wait_for_card(app.run())
    app.number_input(key="analyze.options.samples").set_value(64).run()
    app.button(key="analyze.run").click().run()
    assert backend.runner.run_next()
    (record,) = service.runs()
    open_page(app, "pages/results.py", run=record.run_id)
    assert not app.exception
    said = " ".join(element.value for element in (*app.caption, *app.markdown))
    assert re.search(r"64 images.*on cpu of 2 workers", said)
