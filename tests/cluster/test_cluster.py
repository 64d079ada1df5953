"""Runs on a real cluster of two nodes: the numbers of one machine."""

from collections.abc import Iterator
from itertools import islice

import pytest
import torch
from ray.cluster_utils import Cluster
from torch import nn

from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.core.errors import ClusterFailed, InvalidSpec
from senseapp.data.images import TensorImages
from senseapp.measure.cluster import remote
from senseapp.measure.cluster.cluster import Cluster as Offer
from senseapp.measure.cluster.cluster import connected, look
from senseapp.measure.cluster.executor import RayExecutor
from senseapp.measure.plan import Layout
from senseapp.measure.sweep import Sweep
from senseapp.networks.onnx.open import open_onnx
from senseapp.records.measurement import latest
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION
from tests.onnx_files import exported
from tests.ray_cluster import compare
from tests.small_models import images_for, small_network

pytestmark = [pytest.mark.slow, pytest.mark.wide]

TWO = (0.3, 0.6)
SETTINGS = {
    "sparsity": SensitivitySpec(levels=TWO, compression=SparsityConfig(criterion="wanda")),
    "pruning": SensitivitySpec(levels=TWO, compression=PruningConfig()),
    "activations": SensitivitySpec(levels=(3.0, 5.0), compression=QuantizationConfig(activations=True)),
    "settling": SensitivitySpec(levels=TWO, until_settled=True, metric="kl"),
}


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
        task=CLASSIFICATION,
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_two_nodes_find_what_one_machine_finds(name: str, joined: Offer) -> None:
    images = images_for(70)
    local, shared = opened(None, images, SETTINGS[name]), opened(joined, images, SETTINGS[name])
    assert shared.baseline.outputs.equal(local.baseline.outputs)
    assert len(shared.chunks()) >= 4
    assert shared.total == local.total
    assert 0 < shared.executor.predicted_seconds(shared) < 600
    parts, whole = list(shared.measure()), list(local.measure())
    assert len(parts) == len(whole)
    for key in {item.key for item in parts}:  # each measurement counts the images up to the end of its span
        counts = [item.changes[0].num_samples for item in parts if item.key == key and item.changes]
        assert counts == sorted(set(counts))
    compare(parts, whole)


def test_a_network_from_an_onnx_file_goes_to_the_nodes(joined: Offer) -> None:
    images = images_for(40)
    model = open_onnx(exported(small_network())).network
    local, shared = (opened(each, images, SETTINGS["pruning"], model=model) for each in (None, joined))
    compare(list(shared.measure()), list(local.measure()))


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
