"""What a measurement leaves behind on the model: nothing."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.data.images import TensorImages
from senseapp.data.load import load_demo_images
from senseapp.descriptions import CompressionConfig
from senseapp.measure.quick.scan import quick_scan
from senseapp.measure.sweep import Sweep
from senseapp.networks.sources.demo import load_demo_model
from senseapp.records.spec import SensitivitySpec
from senseapp.tasks import CLASSIFICATION

HOOKS = [name for name in vars(nn.Identity()) if name.endswith("_hooks")]
COMPRESSIONS = [
    (SparsityConfig(), (0.5, 0.9)),
    (QuantizationConfig(activations=True), (8, 2)),
    (PruningConfig(), (0.25, 0.5)),
]


@pytest.mark.parametrize(("compression", "levels"), COMPRESSIONS, ids=["sparsity", "quantization", "pruning"])
def test_no_hook_no_wrapped_forward_and_no_changed_tensor_is_left(
    compression: CompressionConfig, levels: tuple[float, ...]
) -> None:
    model = load_demo_model().module
    before, demo = copy.deepcopy(model.state_dict()), load_demo_images("heldout")
    assert demo.labels is not None
    spec = SensitivitySpec(compression=compression, levels=levels, num_samples=8, layers=("conv1*", "layer1*", "fc"))
    sweep = Sweep.open(model, TensorImages(demo.images[:32], demo.labels[:32]), spec, task=CLASSIFICATION)
    assert quick_scan(sweep)
    assert list(sweep.measure())
    for searched in (model, sweep.context.model):
        assert "_forward_pre_hooks" in HOOKS
        assert not any(getattr(module, name) for module in searched.modules() for name in HOOKS)
        assert not any("forward" in vars(module) for module in searched.modules())
    state = sweep.context.model.state_dict()
    assert state.keys() == before.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in before.items())
