"""Ten networks of ``values``: exact figures are those of a plain loop to the bit, and estimates rank as these do."""

import pytest
import torch

from senseapp.data.images import TensorImages
from senseapp.descriptions import get
from senseapp.measure.accumulation import BaselineOutputs
from senseapp.measure.plan import Layout
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.sweep import Sweep
from senseapp.metrics.predictions import stored
from senseapp.metrics.values import SQUARED_ERROR
from senseapp.records.resolution import spearman
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import task_named
from tests.cases import first_of
from tests.plain_loop import SPARSITY, sparse_logits
from tests.value_networks import NETWORKS, network_of, smooth_images

COUNT = 16
VALUES = task_named("values")
LEVELS = {"sparsity": (0.3, 0.5, 0.7, 0.9), "quantization": (8.0, 6.0, 4.0, 3.0, 2.0)}


@pytest.mark.parametrize("name", first_of(NETWORKS, 5))
def test_each_layer_is_measured_as_by_a_plain_loop_to_the_bit(name: str) -> None:
    network, images = network_of(name), smooth_images(COUNT)
    spec = SensitivitySpec(levels=(SPARSITY,), device="cpu")
    sweep = Sweep.open(network, TensorImages(images), spec, layout=Layout(micro_batch=COUNT), task=VALUES)
    found = {item.layer: {change.metric: change for change in item.changes} for item in sweep.measure()}
    assert set(found) == {layer.name for layer in sweep.context.profile.layers}
    with torch.no_grad():
        before = stored(VALUES.predictions(network(images)))
        plain = BaselineOutputs(before, None, VALUES.metrics(has_labels=False, num_outputs=1))
        for layer, changes in found.items():
            after = stored(VALUES.predictions(sparse_logits(network, layer, "weight", images)))
            expected = plain.moments(after, 0, COUNT)
            assert {metric: change.moments for metric, change in changes.items()} == expected
            assert changes["squared_error"].delta > 0


@pytest.mark.parametrize("mode", ["exact", "quick"])
@pytest.mark.parametrize("kind", first_of(LEVELS))
@pytest.mark.parametrize("name", first_of(NETWORKS))
def test_estimates_rank_layers_and_levels_as_measurements_do(name: str, kind: str, mode: str) -> None:
    network, images = network_of(name), TensorImages(smooth_images(32))
    spec = SensitivitySpec(compression=get(kind).config(), levels=LEVELS[kind], device="cpu", mode=mode)  # type: ignore[arg-type]
    estimated = {item.key: item for item in quick_scan(Sweep.open(network, images, spec, task=VALUES))}
    measured = {item.key: item for item in Sweep.open(network, images, spec, task=VALUES).measure()}
    assert estimated.keys() == measured.keys()
    deltas = [[found[key].change(SQUARED_ERROR.name).delta for key in measured] for found in (estimated, measured)]  # type: ignore[union-attr]
    assert spearman(*deltas) >= 0.95
