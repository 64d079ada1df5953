"""Replay equals the plain loop on networks built of convolutions: the first half of the architectures.

The other half, and structural pruning, are in ``test_replay_architectures_attention.py``, so that two workers share
the time.
"""

from __future__ import annotations

import pytest

from tests.architectures import ARCHITECTURES
from tests.replayed_architectures import CONVOLUTIONAL, check_replay


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if ARCHITECTURES[name].family in CONVOLUTIONAL])
def test_replay_equals_the_plain_loop(name: str) -> None:
    check_replay(name)
