"""Which boxes a layer of a detector moves is found from one image, and estimates are of these boxes."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from senseapp.compressions import QuantizationConfig, SparsityConfig
from senseapp.data.images import TensorImages
from senseapp.measure.quick import scan
from senseapp.measure.quick.recorder import LayerCall, Recorder
from senseapp.measure.quick.responses import find_reach, products_with
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.sweep import Sweep
from senseapp.metrics.detection import DIVERGENCE
from senseapp.metrics.detection.rows import BOX, RowKind, assembled
from senseapp.networks.sources.detectors import opened_detector
from senseapp.records.resolution import spearman
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import TASKS
from senseapp.tasks.directions import feature_maps
from tests import shapes_detector

SIDE = 64


def grid_rows(cells: int, *, anchors: int = 1, kind: RowKind = RowKind.SIGMOID) -> torch.Tensor:
    """Return rows of a map of ``cells`` × ``cells``, row by row, with boxes that lie near their cells."""
    step = SIDE / cells
    y, x = torch.meshgrid(torch.arange(cells), torch.arange(cells), indexing="ij")
    middles = torch.stack([x, y], dim=-1).reshape(-1, 1, 2).repeat(1, anchors, 1).reshape(1, -1, 2) * step + step / 2
    middles += torch.randn(middles.shape) * step / 4
    sizes = torch.rand(middles.shape) * step + step
    boxes = torch.cat([middles - sizes / 2, middles + sizes / 2], dim=2)
    return assembled(boxes, kind, logits=torch.randn(1, boxes.shape[1], 2), objects=None, num_classes=2)


def lengths(rows: torch.Tensor) -> list[int]:
    found = feature_maps(rows)
    assert [0, *(place.stop for place in found)] == [*(place.start for place in found), rows.shape[1]]
    return [place.stop - place.start for place in found]


@pytest.mark.parametrize("anchors", [1, 3])
def test_a_map_begins_where_boxes_are_at_the_top_again(anchors: int) -> None:
    rows = torch.cat([grid_rows(cells, anchors=anchors) for cells in (16, 8, 4)], dim=1)
    assert lengths(rows) == [256 * anchors, 64 * anchors, 16 * anchors]


def test_boxes_in_no_order_are_of_one_map_and_rows_of_two_kinds_of_two() -> None:
    mixed = grid_rows(16)[:, torch.randperm(256)]
    assert lengths(mixed) == [256]
    assert lengths(torch.cat([grid_rows(8, kind=RowKind.ANCHOR), mixed], dim=1)) == [64, 256]


def opened(spec: SensitivitySpec, images: torch.Tensor) -> Sweep:
    return Sweep.open(opened_detector(shapes_detector.trained()), TensorImages(images), spec, task=TASKS["detection"])


def test_the_reach_of_a_layer_are_the_boxes_that_move_when_its_weights_are_other_ones() -> None:
    images, _ = shapes_detector.inputs(range(2))
    sweep = opened(SensitivitySpec(compression=SparsityConfig(), levels=(0.5,), num_samples=2, device="cpu"), images)
    responses = scan._responses(sweep)
    responses.prepare([item.target for item in sweep.planned], (0.5,))
    reach = find_reach(sweep, responses, Recorder(responses.watched, inputs=responses.at_inputs))
    network = sweep.context.model
    assert len({id(places) for places in reach.values()}) == 4  # no boxes, those of either map, and all
    assert reach.keys() == {item.target.layer for item in sweep.planned}
    with torch.inference_mode():
        before = sweep.context.task.output(network(images))
        for layer, places in reach.items():
            changed = copy.deepcopy(network)
            changed.get_submodule(layer).weight.mul_(1.5)  # type: ignore[union-attr, operator]
            moved = (sweep.context.task.output(changed(images)) != before)[..., BOX].any(dim=(0, 2))
            assert moved.any() == ("classification" not in layer)
            assert torch.equal(places[0, :, BOX].any(dim=-1), moved), layer


def test_small_changes_are_estimated_within_a_third_and_ranked_as_measured() -> None:
    images, _ = shapes_detector.inputs(range(48))
    spec = SensitivitySpec(
        compression=QuantizationConfig(), levels=(8.0,), num_samples=48, device="cpu", mode="quick", seed=1
    )
    estimated = {item.key: item.change(DIVERGENCE.name).delta for item in quick_scan(opened(spec, images))}  # type: ignore[union-attr]
    exact = opened(replace(spec, mode="exact"), images).measure()
    measured = {item.key: item.change(DIVERGENCE.name).delta for item in exact}  # type: ignore[union-attr]
    assert estimated.keys() == measured.keys()
    pairs = [(estimated[key], measured[key]) for key in measured]
    assert spearman(*zip(*pairs, strict=True)) > 0.95
    assert all(3 / 4 < one / other < 4 / 3 for one, other in pairs)


# ---- which axis of a recorded tensor counts images, and inner products image by image


@pytest.mark.parametrize(("shape", "batch"), [((3, 4, 5, 6), 0), ((5, 3, 4), 1)])
def test_inner_products_are_those_of_numpy(shape: tuple[int, ...], batch: int) -> None:
    output, response, *gradients = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    call = LayerCall(args=(), kwargs={}, output=output, gradients=list(gradients))
    (found,) = products_with(call, batch, 3, [response])
    rows = [np.moveaxis(each.numpy(), batch, 0).reshape(3, -1) for each in (response, *gradients)]
    expected = np.stack([np.einsum("nv,nv->n", rows[0], each) for each in rows[1:]], axis=1)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)
