"""What unit tests share."""

import pytest

from tests.few_digits import few_digits as few_digits


@pytest.fixture
def tangent_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave large estimates of the quick scan as the tangent gives them, without true passes."""
    monkeypatch.setattr("senseapp.measure.quick.true_passes._LARGE", float("inf"))
