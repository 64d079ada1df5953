"""A server whose engine is made up, and one person at it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from senseapp.server.backend import Backend
from senseapp.server.service import Service
from tests.fake_session import FakeEngine, a_backend


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def backend(tmp_path: Path, engine: FakeEngine) -> Iterator[Backend]:
    made = a_backend(tmp_path, engine)
    yield made
    made.close()


@pytest.fixture
def service(backend: Backend) -> Service:
    return Service(backend, "ann")
