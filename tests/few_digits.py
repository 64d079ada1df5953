"""The demo with a few of its digits, for tests of what becomes of a run and not of its figures."""

from collections.abc import Iterator

import pytest

from senseapp.data import load

NUM_DIGITS = 300


@pytest.fixture(scope="module")
def few_digits() -> Iterator[None]:
    """Let every run of a test file have the first 300 of each part of the digits: proofs take a third of the time."""
    indices = load._indices
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "_indices", lambda split: indices(split)[:NUM_DIGITS])
        load.demo_pictures.cache_clear()
        yield
    load.demo_pictures.cache_clear()
