"""A real Ray cluster of two nodes on this machine, and nothing of it left afterwards."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from ray.cluster_utils import Cluster

from senseapp.records.measurement import LayerMeasurement, latest

STORE_BYTES = 100 * 2**20
GONE_SECONDS = 20


@contextmanager
def two_nodes(*, gone_seconds: float = GONE_SECONDS) -> Iterator[Cluster]:
    """Start a head and a second node with one processor each; end every process of them on exit.

    Args:
        gone_seconds: left to them to end by themselves; without a head some never do.
    """
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
        _, alive = psutil.wait_procs(started, timeout=gone_seconds)
        for process in alive:
            process.kill()
        patch.undo()
        shutil.rmtree(folder, ignore_errors=True)


def add_node(cluster: Cluster) -> object:
    """Add a node with one processor."""
    return cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)


def kill_head(cluster: Cluster) -> None:
    """End every process of the head at once, as when its machine loses power."""
    of_head = [psutil.Process(info.process.pid) for found in cluster.head_node.all_processes.values() for info in found]
    for process in [child for parent in of_head for child in parent.children(recursive=True)] + of_head:
        process.kill()
    cluster.remove_node(cluster.head_node, allow_graceful=False)


def compare(found: list[LayerMeasurement], expected: list[LayerMeasurement]) -> None:
    """Equal to one part in a million in every metric, exactly in those that count images."""
    by_key = {item.key: item for item in latest(found)}
    assert by_key.keys() == {item.key for item in expected}
    for item in latest(expected):
        twin = by_key[item.key]
        assert (twin.status, twin.members, twin.achieved_level) == (item.status, item.members, item.achieved_level)
        assert (twin.removed_params, twin.removed_macs, twin.reason) == (
            item.removed_params,
            item.removed_macs,
            item.reason,
        )
        for change in item.changes:
            other = twin.change(change.metric)
            assert other is not None
            assert other.delta == pytest.approx(change.delta, abs=1e-6)
            assert (other.ci_low, other.ci_high) == pytest.approx((change.ci_low, change.ci_high), abs=1e-6)
            if change.metric in ("top1", "top5", "agreement"):
                assert other.moments == change.moments
