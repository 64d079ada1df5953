"""What unit tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from senseapp.data.picture_process import DECODERS
from tests.few_digits import few_digits as few_digits


@pytest.fixture
def tangent_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave large estimates of the quick scan as the tangent gives them, without true passes."""
    monkeypatch.setattr("senseapp.measure.quick.true_passes._LARGE", float("inf"))


@pytest.fixture(scope="session", autouse=True)
def _kept_decoders() -> Iterator[None]:
    """Keep the processes that decode pictures from one test to the next: to start one takes a fifth of a second."""
    usual = DECODERS.rest
    DECODERS.rest = lambda kept=4: usual(kept)  # type: ignore[method-assign]
    yield
    DECODERS.rest = usual  # type: ignore[method-assign]
    DECODERS.rest(0)
