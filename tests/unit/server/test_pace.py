"""How often one person may ask for something."""

from pathlib import Path

import pytest

from senseapp.core.errors import RateLimited
from senseapp.records.spec import HistogramSpec, RunSpec
from senseapp.server.run_tasks import HistogramTask
from senseapp.server.service import Service
from senseapp.server.settings import RateLimiter, ServerSettings
from tests.fake_session import a_backend


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_the_last_minute_counts_for_each_person_and_thing() -> None:
    clock = Clock()
    limiter = RateLimiter(2, clock)
    limiter.count("ann", "runs")
    clock.seconds = 20
    limiter.count("ann", "runs")
    limiter.count("ann", "uploads")
    limiter.count("bob", "runs")
    with pytest.raises(RateLimited, match=r"Up to 2 runs a minute.*Try again in 40 seconds"):
        limiter.count("ann", "runs")
    clock.seconds = 60
    limiter.count("ann", "runs")
    with pytest.raises(RateLimited, match="in 20 seconds"):
        limiter.count("ann", "runs")


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(a_backend(tmp_path, settings=ServerSettings(runs_per_minute=1)))


def test_runs_are_limited_and_the_refused_one_leaves_nothing(service: Service) -> None:
    service.start(RunSpec())
    with pytest.raises(RateLimited):
        service.start(RunSpec())
    assert len(service.runs()) == 1
    Service(service._backend, "bob").start(RunSpec())


def test_uploads_are_limited(service: Service) -> None:
    for _ in range(10):
        service.inputs.reserve_upload(10)
    with pytest.raises(RateLimited):
        service.inputs.reserve_upload(10)


def test_jobs_on_runs_are_limited_but_asking_again_for_one_that_waits_is_not(service: Service) -> None:
    run_id = service.start(RunSpec())
    service._backend.runner.run_next()
    first = HistogramSpec(layer="conv0")
    for _ in range(5):
        service.work.start(HistogramTask(run_id=run_id, spec=first))
    service.work.start(HistogramTask(run_id=run_id, spec=HistogramSpec(layer="conv1")))
    with pytest.raises(RateLimited):
        service.work.start(HistogramTask(run_id=run_id, spec=HistogramSpec(layer="conv2")))
