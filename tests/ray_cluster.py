"""A real Ray cluster of two nodes on this machine, and nothing of it left afterwards."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from ray.cluster_utils import Cluster

STORE_BYTES = 100 * 2**20
GONE_SECONDS = 20


@contextmanager
def two_nodes() -> Iterator[Cluster]:
    """Start a head and a second node with one processor each; end every process of them on exit."""
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # Ray's sockets lie in it, and their paths must be short
    Path(folder, "ray").mkdir()  # Ray writes the address into it before anything else makes it
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    cluster, patch = Cluster(), pytest.MonkeyPatch()
    patch.setenv("RAY_TMPDIR", folder)  # so that ``auto`` finds this cluster and no other
    try:
        cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES, include_dashboard=False)
        add_node(cluster)
        yield cluster
    finally:
        started = [one for one in psutil.Process().children(recursive=True) if one.pid not in before]
        cluster.shutdown()
        _, alive = psutil.wait_procs(started, timeout=GONE_SECONDS)
        for process in alive:
            process.kill()
        patch.undo()
        shutil.rmtree(folder, ignore_errors=True)


def add_node(cluster: Cluster) -> object:
    """Add a node with one processor."""
    return cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
