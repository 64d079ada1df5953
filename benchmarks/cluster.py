"""Two local Ray workers beside one process: wall time, processor time, and equal results.

``python -m benchmarks.cluster`` starts a cluster of two nodes with one processor each, and ends it.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from tempfile import TemporaryDirectory

os.environ["OMP_NUM_THREADS"] = "1"  # one core each, here and in the workers

import psutil
import timm
import torch
from ray.cluster_utils import Cluster

from senseapp.core.process import become_measuring
from senseapp.data.images import TensorImages
from senseapp.measure.cluster.cluster import connected
from senseapp.measure.cluster.executor import RayExecutor
from senseapp.measure.executor import Executor
from senseapp.measure.plan import Layout
from senseapp.measure.sweep import Sweep
from senseapp.records.measurement import LayerMeasurement, latest
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION

SPEC = SensitivitySpec(levels=(0.3, 0.5, 0.7, 0.9), seed=1)
NUM_IMAGES, SIZE = 64, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    seconds: float
    cpu_seconds: float
    found: tuple[LayerMeasurement, ...]


def main() -> None:
    """Print both, and how far apart their figures are."""
    torch.set_num_threads(1)
    local = measured(None)
    print(f"one process: {local.seconds:.1f} s, processor {local.cpu_seconds:.1f} s")
    with TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        shared = on_two_nodes(folder)
    print(f"two workers: {shared.seconds:.1f} s, processor {shared.cpu_seconds:.1f} s")
    print(f"wall {shared.seconds / local.seconds:.2f}, processor {shared.cpu_seconds / local.cpu_seconds:.3f}")
    print(
        f"largest difference in loss {difference(local.found, shared.found):.1e}; top-1 sums equal: "
        f"{counts(local.found) == counts(shared.found)}"
    )


def on_two_nodes(folder: str) -> Timed:
    cluster = Cluster()
    try:
        for options in ({"include_dashboard": False, "temp_dir": folder}, {}):
            cluster.add_node(num_cpus=1, object_store_memory=200 * 2**20, **options)
        with connected(cluster.address, device="cpu") as offer:
            measured(RayExecutor(offer, lambda sentence: None), images=2)  # starts the workers
            return measured(RayExecutor(offer, lambda sentence: None))
    finally:
        cluster.shutdown()


def measured(executor: Executor | None, *, images: int = NUM_IMAGES) -> Timed:
    torch.manual_seed(0)
    model = timm.create_model("resnet18", num_classes=10).eval()
    pictures = TensorImages(torch.randn(images, 3, SIZE, SIZE), torch.randint(10, (images,)))
    sweep = Sweep.open(
        model,
        pictures,
        SPEC,
        layout=Layout(channels_last=True, micro_batch=8),
        executor=executor,
        span_images=16,
        task=CLASSIFICATION,
    )
    before, started = _cpu_seconds(), time.perf_counter()
    found = latest(sweep.measure())
    return Timed(seconds=time.perf_counter() - started, cpu_seconds=_cpu_seconds() - before, found=found)


def _cpu_seconds() -> float:
    """Return the processor time of this process and everything that it started and that still runs."""
    here = psutil.Process()
    times = [process.cpu_times() for process in (here, *here.children(recursive=True)) if process.is_running()]
    return sum(each.user + each.system for each in times)


def difference(first: tuple[LayerMeasurement, ...], second: tuple[LayerMeasurement, ...]) -> float:
    by_key = {item.key: item for item in second}
    pairs = [(item.change("loss"), by_key[item.key].change("loss")) for item in first]
    return max(abs(one.delta - other.delta) for one, other in pairs if one and other)


def counts(found: tuple[LayerMeasurement, ...]) -> dict[tuple[str, float], tuple[float, ...]]:
    return {item.key: change.moments for item in found if (change := item.change("top1"))}


if __name__ == "__main__":
    become_measuring(beside_others=False)
    main()
