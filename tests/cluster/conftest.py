"""One Ray cluster for all tests of this folder; those that end a node of it come last, by the names of their files."""

from collections.abc import Iterator

import pytest
import torch
from ray.cluster_utils import Cluster

from tests.ray_cluster import two_nodes


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with two_nodes(gone_seconds=1) as started:
        yield started


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As a worker of one processor has."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
