"""What holds for every test: one torch thread and known seeds."""

import os
import random
import sys

import numpy as np
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded; the workers share the cores


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Seed the generators that a test may draw from; torch only where it has been loaded, and to its end."""
    random.seed(0)
    np.random.seed(0)
    if hasattr(sys.modules.get("torch"), "manual_seed"):  # a page may be loading it in a thread just now
        sys.modules["torch"].manual_seed(0)
