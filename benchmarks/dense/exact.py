"""Does exact measurement equal a plain loop on torchvision's networks? ``python -m benchmarks.dense.exact``.

Each network is measured with random weights, and after some steps of training on rectangles, which move weights, norms
and their statistics. The plain loop copies the network, sets the smallest weights of one layer to zero, runs whole
passes in the run's layout, and compares their predictions with the task's divergence.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from benchmarks.dense.networks import names, network, opened, rectangles, trained, with_statistics
from benchmarks.results import write_row
from senseapp.data.images import TensorImages
from senseapp.measure.sweep import Sweep
from senseapp.metrics import METRICS
from senseapp.metrics.predictions import Predictions, joined
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import TASKS
from tests.plain_loop import sampled

TITLE = "Dense networks: exact measurement equals a plain loop (`python -m benchmarks.dense.exact`)"
HEAD = (
    "Largest difference of the divergence over layers, spread over the network, at 50 % zeros; *trained*: after some "
    "steps on rectangles. *Moved*: the median over weights of their relative change by the training.",
    "",
    "| network, side, images | layers | untrained: difference, largest divergence | steps, moved | "
    "trained: difference, largest divergence | holds |",
    "|---|---|---|---|---|---|",
)
SIDES = {"ssd300_vgg16": 300, "ssdlite320_mobilenet_v3_large": 96}
LEVEL, USUAL_SIDE, COUNT = 0.5, 64, 2


def plain(sweep: Sweep, layer: str, level: float) -> Predictions:
    """Return the predictions of a copy whose smallest weights of one layer are zero, by whole passes."""
    changed = copy.deepcopy(sweep.context.model)
    weight = changed.get_submodule(layer).get_parameter("weight")
    with torch.no_grad():
        lost = weight.abs().flatten().argsort(stable=True)[: int(level * weight.numel())]
        weight[torch.zeros(weight.numel()).index_fill(0, lost, 1).reshape(weight.shape) == 1] = 0
    context = sweep.context
    with torch.inference_mode():
        return joined([context.read(changed(batch)) for batch in context.batches(0, len(context.images))])


def differences(name: str, module: nn.Module, images: Tensor, layers: int) -> Iterator[tuple[float, float]]:
    """Yield what was measured of some layers, and what a plain loop gives."""
    task = TASKS["segmentation" if name in names("segmentation") else "detection"]
    known = [each for each, part in module.named_modules() if isinstance(part, nn.Conv2d | nn.Linear)]
    left_out = ("mask_", "keypoint_", "aux_classifier")
    chosen = sampled([each for each in known if not any(part in each for part in left_out)], layers)
    count = len(images)
    spec = SensitivitySpec(levels=(LEVEL,), num_samples=count, batch_size=count, device="cpu", layers=chosen)
    sweep = Sweep.open(module, TensorImages(images), spec, task=task)
    assert sweep.context.replay_obstacle is None, sweep.context.replay_obstacle
    metric, found = METRICS[task.divergence], {item.layer: item for item in sweep.measure()}
    assert found.keys() == set(chosen)
    for layer, item in found.items():
        change = item.change(metric.name)
        assert change is not None, item.reason
        after = plain(sweep, layer, item.achieved_level or LEVEL)
        yield change.delta, metric.change(metric.moments(sweep.baseline.outputs, after, None)).delta


def _moved(before: nn.Module, after: nn.Module) -> float:
    pairs = zip(before.parameters(), after.parameters(), strict=True)
    shares = [float((new - old).norm() / old.norm()) for old, new in pairs if old.dim() > 1]
    return float(torch.tensor(shares).median())


def row(name: str, steps: int, layers: int) -> str:
    """Measure one network untrained and trained; return its row."""
    side = SIDES.get(name, USUAL_SIDE)
    images = rectangles(0, COUNT, side)[0]
    untrained, learnt = network(name, side), trained(name, side, steps=steps, pictures=16, batch=4)
    moved = _moved(untrained, learnt)
    cells, holds = [], True
    for module in (with_statistics(name, untrained, images), learnt):
        pairs = list(differences(name, opened(name, module), images, layers))
        worst, most = max(abs(one - other) for one, other in pairs), max(other for _, other in pairs)
        cells.append(f"{worst:.1g}, {most:.3g}")
        holds &= worst <= 1e-6 * most and most > 0
    return (
        f"| {name}, {side}, {COUNT} | {layers} | {cells[0]} | {steps}, {100 * moved:.2g} % | {cells[1]} | "
        f"{'yes' if holds else '**no**'} |"
    )


def main() -> None:
    """Measure and write rows of ``RESULTS.md``."""
    parser = argparse.ArgumentParser(description=__doc__)
    every = [*names("segmentation"), *names("detection")]
    parser.add_argument("networks", nargs="*", help="names; default: all")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--layers", type=int, default=4)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for name in asked.networks or every:
        found = row(name, asked.steps, asked.layers)
        print(found, flush=True)
        write_row(TITLE, HEAD, found)


if __name__ == "__main__":
    main()
