"""Runs on a real cluster of two nodes: the numbers of one machine, whatever happens to a node or to the run."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import psutil
import pytest
import ray
import torch
from ray.cluster_utils import Cluster
from torch import nn

from senseapp.data import TensorImages
from senseapp.distributed import remote
from senseapp.distributed.cluster import Cluster as Offer
from senseapp.distributed.cluster import connected, look
from senseapp.distributed.executor import RayExecutor
from senseapp.distributed.simulate import makespan
from senseapp.errors import ClusterFailed, InvalidSpec
from senseapp.results import LayerMeasurement, RunState, latest
from senseapp.sensitivity import Layout, Session, Sweep, arithmetic_of
from senseapp.service import Backend, Service
from senseapp.service.live import LiveRun
from senseapp.spec import PruningConfig, QuantizationConfig, RunSpec, SensitivitySpec, SparsityConfig
from tests.fake_session import fake_calibration
from tests.ray_cluster import compare, two_nodes
from tests.small_models import images_for, small_network

TWO = (0.3, 0.6)
SETTINGS = {
    "sparsity": SensitivitySpec(levels=TWO, compression=SparsityConfig(criterion="wanda")),
    "pruning": SensitivitySpec(levels=TWO, compression=PruningConfig()),
    "activations": SensitivitySpec(levels=(3.0, 5.0), compression=QuantizationConfig(activations=True)),
    "settling": SensitivitySpec(levels=TWO, until_settled=True, metric="kl"),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as a worker of one processor has
    with two_nodes() as started:
        yield started
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def joined(cluster: Cluster) -> Iterator[Offer]:
    """This process as one that asks; its workers load the engine once for all tests."""
    with connected(cluster.address, device="cpu") as offer:
        yield offer


def opened(
    joined: Offer | None,
    images: TensorImages,
    settings: SensitivitySpec,
    span_images: int = 16,
    model: nn.Module | None = None,
) -> Sweep:
    """Return the sweep on the cluster, or on this machine, with the very same arithmetic."""
    return Sweep.open(
        model or small_network(),
        images,
        settings,
        layout=Layout(micro_batch=4),
        span_images=span_images,
        executor=None if joined is None else RayExecutor(joined, lambda sentence: None),
    )


@pytest.mark.parametrize("name", list(SETTINGS))
def test_two_nodes_find_what_one_machine_finds(name: str, joined: Offer) -> None:
    images = images_for(70)
    local, shared = opened(None, images, SETTINGS[name]), opened(joined, images, SETTINGS[name])
    assert shared.yardstick.baseline.equal(local.yardstick.baseline)
    assert len(shared.chunks()) >= 4
    assert shared.total == local.total
    assert 0 < shared.predicted_seconds() < 600
    parts, whole = list(shared.measure()), list(local.measure())
    assert len(parts) == len(whole)
    for key in {item.key for item in parts}:  # each measurement counts the images up to the end of its span
        counts = [item.changes[0].num_samples for item in parts if item.key == key and item.changes]
        assert counts == sorted(set(counts))
    compare(parts, whole)


def test_half_of_a_run_here_and_half_on_the_cluster_make_one(joined: Offer) -> None:
    images = images_for(70)
    whole = list(opened(None, images, SETTINGS["sparsity"]).measure())
    for first, second in ((None, joined), (joined, None)):
        part = list(islice(opened(first, images, SETTINGS["sparsity"]).measure(), len(whole) // 2))
        rest = list(opened(second, images, SETTINGS["sparsity"]).measure(done=part))
        assert len(part) + len(rest) == len(whole)
        compare([*part, *rest], whole)


def test_stopping_early_takes_the_tasks_back(joined: Offer) -> None:
    sweep = opened(joined, images_for(64), SETTINGS["sparsity"], span_images=4)
    run = sweep.measure()
    assert len(list(islice(run, 3))) == 3
    run.close()
    assert len(list(sweep.measure())) == sweep.total


def test_images_beyond_the_object_store_go_by_way_of_the_disk(joined: Offer) -> None:
    images = TensorImages(torch.randn(3, 3, 1024, 1024).repeat(3, 1, 1, 1))  # 108 MiB in a store of 100
    model = nn.Sequential(nn.AvgPool2d(128), nn.Flatten(), nn.Linear(3 * 8 * 8, 6)).eval()
    (found,) = latest(opened(joined, images, SensitivitySpec(levels=(0.5,)), span_images=4, model=model).measure())
    assert found.changes[0].num_samples == 9


def test_a_worker_with_other_versions_is_refused(joined: Offer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "versions_here", lambda: {"torch": "1.0"})
    with pytest.raises(
        ClusterFailed, match=r"other versions .*\(torch \S+ instead of 1\.0\).* What was measured is kept"
    ):
        opened(joined, images_for(8), SETTINGS["sparsity"])


def test_a_cluster_without_room_for_a_worker_is_refused(joined: Offer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENSEAPP_RAY_CPUS_PER_WORKER", "64")
    with pytest.raises(ClusterFailed, match="no node with 64 processors"):
        look(device="cpu")
    monkeypatch.setenv("SENSEAPP_RAY_CPUS_PER_WORKER", "some")
    with pytest.raises(InvalidSpec, match="whole number of processors"):
        look(device="cpu")


def test_the_simulator_agrees_with_measured_times(joined: Offer) -> None:
    planned = [0.4, 0.1, 0.3, 0.1, 0.2, 0.4, 0.1, 0.2, 0.3, 0.1]

    def work(seconds: float) -> tuple[float, float]:
        began = time.time()
        time.sleep(seconds)
        return began, time.time()

    task = ray.remote(num_cpus=1)(work)
    spans = ray.get([task.remote(seconds) for seconds in planned])
    took = [end - began for began, end in spans]
    measured = max(end for _, end in spans) - min(began for began, _ in spans)
    simulated = makespan(took, 2)
    assert measured >= simulated - max(took)  # tasks may be begun in a slightly other order
    assert measured <= simulated + max(took) + 0.5 * len(planned)  # and each needs a moment to begin


def test_a_node_killed_in_mid_run_and_a_cancel_change_nothing(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the app does it: a process of its own asks, loses a node, is cancelled; the rest is measured here."""
    monkeypatch.setenv("SENSEAPP_RAY_ADDRESS", cluster.address)
    (victim,) = cluster.worker_nodes
    backend = Backend(tmp_path, workers=0, data_roots=(), calibrate=fake_calibration)
    service = Service(backend)
    run_id = service.start(RunSpec(sensitivity=SensitivitySpec(levels=(0.4, 0.8), num_samples=48)))
    journal = backend.store.folder(run_id).measurements
    tell, told = LiveRun.measured, itertools.count(1)
    actions = {3: lambda: cluster.remove_node(victim, allow_graceful=False), 30: lambda: service.cancel(run_id)}

    def act_and_tell(live: LiveRun, measurement: LayerMeasurement) -> None:
        actions.get(next(told), lambda: None)()
        tell(live, measurement)

    monkeypatch.setattr(LiveRun, "measured", act_and_tell)
    backend.runner.run_next()
    assert len(cluster.worker_nodes) == 0
    assert service.snapshot(run_id).state is RunState.CANCELLED
    assert 30 <= journal.count() < 46  # most of it after the node was gone
    assert service.result(run_id).environment["cluster"] == f"Ray {ray.__version__}"
    assert asking() == []

    service.resume(run_id, here=True)
    backend.runner.run_next()
    assert service.snapshot(run_id).state is RunState.DONE
    shared = service.result(run_id)
    layout, span_images = arithmetic_of(shared)
    local = Session.open(shared.spec, layout=layout, span_images=span_images)
    compare(list(shared.measurements), list(local.measure()))
    assert shared.baseline == pytest.approx(local.baseline, abs=1e-6)
    backend.close()


def asking() -> list[int]:
    """Return the processes of ours that talk to a cluster."""
    return [child.pid for child in psutil.Process().children() if "distributed.child" in " ".join(child.cmdline())]
