"""The slow, obvious way to measure a layer: change its weight, run the whole network, change it back."""

import copy
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from senseapp.data.images import TensorImages
from senseapp.measure.plan import Layout
from senseapp.measure.sweep import Sweep
from senseapp.records.measurement import LayerMeasurement, Status
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION

SPARSITY = 0.5


def labelled(images: Tensor, num_classes: int, seed: int = 0) -> TensorImages:
    """Give each image a random class."""
    generator = torch.Generator().manual_seed(seed)
    return TensorImages(images, torch.randint(num_classes, (len(images),), generator=generator))


def sampled(names: Sequence[str], count: int = 4) -> tuple[str, ...]:
    """Return the first name, the last one, and others spread evenly between them."""
    last = len(names) - 1
    return tuple(dict.fromkeys(names[round(step * last / (count - 1))] for step in range(count)))


def sparse_logits(model: nn.Module, layer: str, attribute: str, images: Tensor, sparsity: float = SPARSITY) -> Tensor:
    """Return the output with the smallest weights of ``layer`` at 0; the model is as before afterwards."""
    weight = model.get_submodule(layer).get_parameter(attribute)
    before = weight.detach().clone()
    magnitudes = before.abs().numpy().ravel()
    num_zeros = int(sparsity * magnitudes.size)
    limit = np.partition(magnitudes, num_zeros - 1)[num_zeros - 1]
    lost = magnitudes < limit
    lost[np.flatnonzero(magnitudes == limit)[: num_zeros - lost.sum()]] = True
    with torch.no_grad():
        weight[torch.from_numpy(lost).view(weight.shape)] = 0
        try:
            return model(images)
        finally:
            weight.copy_(before)


def sparse_copy(network: nn.Module, layer: str, level: float) -> nn.Module:
    """Return a copy with the smallest weights of one layer at zero, a share of ``level``."""
    changed = copy.deepcopy(network)
    weight = changed.get_submodule(layer).get_parameter("weight")
    with torch.no_grad():
        lost = weight.abs().flatten().argsort()[: round(level * weight.numel())]
        weight.mul_(torch.ones(weight.numel()).index_fill(0, lost, 0).reshape(weight.shape))
    return changed


def loss_and_top1(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return the mean cross-entropy and the share of right answers."""
    return float(F.cross_entropy(logits.double(), labels)), float((logits.argmax(1) == labels).double().mean())


def noise_to_signal(logits: Tensor, original: Tensor) -> float:
    """Return the energy of the error over that of the original; unlike the loss it shows however small scores are."""
    return float((logits.double() - original.double()).square().sum() / original.double().square().sum())


def sweep_of(model: nn.Module, images: TensorImages, spec: SensitivitySpec) -> Sweep:
    """Open a sweep in the model's own memory layout, with all images in one pass."""
    return Sweep.open(model, images, spec, layout=Layout(micro_batch=len(images)), task=CLASSIFICATION)


def measured(measurements: Sequence[LayerMeasurement]) -> dict[str, tuple[float, float, float]]:
    """Return loss, top-1 and the noise-to-signal ratio by layer."""
    values: dict[str, tuple[float, float, float]] = {}
    for item in measurements:
        loss, top1, sqnr = item.change("loss"), item.change("top1"), item.change("sqnr")
        if item.status is Status.MEASURED and loss and top1 and sqnr:
            values[item.layer] = loss.value, top1.value, sqnr.delta
    return values


def assert_same(found: tuple[float, float, float], logits: Tensor, original: Tensor, labels: Tensor) -> None:
    """Compare what was measured with the class scores of a whole pass: loss to 1e-5, top-1 exactly."""
    loss, top1 = loss_and_top1(logits, labels)
    assert abs(found[0] - loss) <= 1e-5
    assert found[1] == top1
    # The two run at other addresses, where a few kernels round differently; small errors show that the most.
    assert abs(found[2] - noise_to_signal(logits, original)) <= 1e-3 * max(found[2], 1e-6)


def assert_equals_plain_loop(model: nn.Module, images: TensorImages, layers: tuple[str, ...] = ()) -> Sweep:
    """Measure sparsity in a sweep and by whole passes; return the sweep."""
    sweep = sweep_of(model, images, SensitivitySpec(levels=(SPARSITY,), layers=layers))
    found = list(sweep.measure())
    assert not [item.reason for item in found if item.status is Status.FAILED]
    values = measured(found)
    assert values, "nothing was measured"
    assert images.labels is not None
    with torch.no_grad():
        original = model(images.images.clone())
    for layer, value in values.items():
        attribute = sweep.context.profile.layer(layer).parameter.rpartition(".")[2]
        assert_same(value, sparse_logits(model, layer, attribute, images.images.clone()), original, images.labels)
    assert max(noise for _, _, noise in values.values()) > 1e-10, "no layer changes the output, so nothing would show"
    return sweep


def with_own_statistics(module: nn.Module, images: Tensor) -> nn.Module:
    """Return the network with the statistics of ``images`` in its norms: else what early layers do is rounded away."""
    for each in module.modules():
        if isinstance(each, nn.BatchNorm2d):
            each.reset_running_stats()
            each.momentum = None
        if isinstance(each, nn.Dropout):
            each.p = 0.0
    with torch.no_grad():
        module.train()(images)
    return module.eval()
