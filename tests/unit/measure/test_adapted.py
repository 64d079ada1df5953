"""Layers measured with adapted weights: least squares as numpy solves it, gathered once, less harm, nothing left."""

import copy

import numpy as np
import pytest
import torch

from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.compressions.base import CompressionRequest
from senseapp.core.errors import InvalidSpec
from senseapp.measure.measurer import AdaptedCompressor, compressor_for
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.sweep import Sweep, measure
from senseapp.records.measurement import change_in
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION
from tests.compressors import profiles_of
from tests.small_models import images_for, small_network

CONFIGS = {"bits": (QuantizationConfig(), (3.0, 2.0)), "zeros": (SparsityConfig(), (0.5, 0.75))}


def spec_of(case: str, *, adapted: bool = True) -> SensitivitySpec:
    config, levels = CONFIGS[case]
    return SensitivitySpec(compression=config, levels=levels, metric="kl", adapted=adapted)


def adapted_compressor(spec, network, batches):
    request = CompressionRequest(model=network, layers=profiles_of(network), calibration=tuple(batches))
    return compressor_for(spec, request)


def damages(case, *, adapted):
    found = measure(
        small_network(),
        images_for(24),
        spec_of(case, adapted=adapted),
        calibration=images_for(48, seed=5),
        task=CLASSIFICATION,
    )
    return {item.key: change_in(item.changes, "kl").delta for item in found}


@pytest.mark.parametrize("case", CONFIGS)
def test_each_layer_is_measured_with_less_harm_and_the_network_comes_back(case):
    network = small_network()
    before = copy.deepcopy(network.state_dict())
    list(measure(network, images_for(8), spec_of(case), task=CLASSIFICATION))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    plain, adapted = damages(case, adapted=False), damages(case, adapted=True)
    assert adapted.keys() == plain.keys()
    assert sum(adapted.values()) < 0.7 * sum(plain.values())
    assert np.mean([adapted[key] < plain[key] for key in plain]) > 0.7


def test_what_is_kept_is_the_least_squares_solution_for_the_inputs_of_the_uncompressed_network():
    network, images = small_network(), images_for(40).batch(0, 40)
    compressor = adapted_compressor(spec_of("zeros"), network, [images])
    target = next(target for target in compressor.targets if target.layer == "head")
    found = compressor.prepare(target, 0.5).weight().double().numpy()
    seen = []
    with network.head.register_forward_pre_hook(lambda _module, given: seen.append(given[0])), torch.no_grad():
        network(images.clone())
    rows = torch.cat(seen).double().numpy()
    moments = rows.T @ rows
    moments += 0.01 * moments.diagonal().mean() * np.eye(len(moments))
    for row, old in zip(found, network.head.weight.detach().double().numpy(), strict=True):
        kept = row != 0
        wanted = np.linalg.solve(moments[np.ix_(kept, kept)], (moments @ old)[kept])
        np.testing.assert_allclose(row[kept], wanted, rtol=1e-2, atol=1e-3)


def test_one_pass_over_the_calibration_images_serves_all_levels_of_all_layers():
    network = small_network()
    compressor = adapted_compressor(spec_of("bits"), network, list(images_for(24).batch(0, 24).split(8)))
    assert isinstance(compressor, AdaptedCompressor)
    passes = []
    with network.register_forward_pre_hook(lambda _module, _given: passes.append(1)):
        for target in compressor.targets:
            for level in (4.0, 3.0, 2.0):
                compressor.prepare(target, level)
    assert len(passes) == 3


def test_estimates_are_of_adapted_weights_too():
    found = {}
    for adapted in (False, True):
        sweep = Sweep.open(small_network(), images_for(24), spec_of("bits", adapted=adapted), task=CLASSIFICATION)
        found[adapted] = sum(change_in(item.changes, "kl").delta for item in quick_scan(sweep))
    assert found[True] < 0.7 * found[False]


def test_inputs_are_rounded_beside_adapted_weights():
    spec = SensitivitySpec(compression=QuantizationConfig(activations=True), levels=(3.0,), adapted=True)
    network, images = small_network(), images_for(16).batch(0, 16)
    compressor = adapted_compressor(spec, network, [images])
    prepared = compressor.prepare(next(target for target in compressor.targets if target.layer == "head"), 3.0)
    before = network.head.weight.clone()
    with torch.no_grad(), prepared.active():
        both, weight = network(images.clone()), network.head.weight.clone()
    network.head.weight.data.copy_(weight)
    with torch.no_grad():
        weight_alone = network(images.clone())
    assert not torch.equal(weight, before)
    assert not torch.equal(both, weight_alone)


def test_channels_cannot_be_measured_so():
    with pytest.raises(InvalidSpec, match="adapted weights"):
        SensitivitySpec(compression=PruningConfig(), adapted=True)
