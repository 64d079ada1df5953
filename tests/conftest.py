"""What holds for every test: one torch thread, known seeds, and files that stay on one worker."""

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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each file to one worker, so that its fixtures are made once, and all browser tests to the same one."""
    for item in items:
        group = "browser" if item.get_closest_marker("browser") else item.path.name
        item.add_marker(pytest.mark.xdist_group(group))
