"""One Ray cluster for all tests of this folder; those that end a node of it come last, by the names of their files."""

from collections.abc import Iterator

import pytest
from ray.cluster_utils import Cluster

from tests.ray_cluster import two_nodes


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with two_nodes(gone_seconds=1) as started:
        yield started
