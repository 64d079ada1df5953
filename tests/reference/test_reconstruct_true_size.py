"""The size that is counted from couplings is the size of the network that was truly pruned."""

import random
from dataclasses import replace

import pytest
import timm
import torch

from senseapp.compressions import PruningConfig
from senseapp.networks.profile import profile_model
from senseapp.networks.sources.demo import build_demo_network
from senseapp.prove.evaluator import couplings_of
from senseapp.reconstruct.apply import apply_schedule, configs_for, sizes_of
from senseapp.records.measurement import RunResult
from senseapp.records.schedule import ResourceBudget, Schedule, ScheduleEntry
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.solve.trade_off import true_figures
from tests.cases import first_of

SHAPES = {
    "demo": (1, 32, 32),
    "mobilenetv3_small_050": (3, 64, 64),  # depthwise convolutions, squeeze and excitation
    "densenet121": (3, 32, 32),  # layers that read joined channels
    "convnext_atto": (3, 64, 64),
    "resnext26ts": (3, 64, 64),  # convolution groups
    "vit_tiny_patch16_224": (3, 224, 224),  # heads
}


def a_run(profile) -> RunResult:
    spec = RunSpec(sensitivity=SensitivitySpec(compression=PruningConfig(), levels=(0.5,)))
    return RunResult(spec=spec, profile=profile, metric="kl", baseline={}, measurements=())


@pytest.mark.architectures
@pytest.mark.parametrize("name", first_of(SHAPES, 2))
def test_counted_and_pruned_agree(name):
    torch.manual_seed(0)
    model = (build_demo_network() if name == "demo" else timm.create_model(name, num_classes=10)).eval()
    images = torch.randn(1, *SHAPES[name])
    profile = profile_model(model, images)
    groups = couplings_of(model, a_run(profile))
    draw = random.Random(1)
    chosen = {group.layer: draw.choice((0.0, 0.15, 0.5, 0.8)) for group in groups}
    schedule = Schedule(
        model=profile.title,
        method="manual",
        entries=tuple(
            ScheduleEntry(layer=layer, members=(layer,), compression="pruning", level=level)
            for layer, level in chosen.items()
            if level
        ),
        budget=ResourceBudget(kind="macs", target=0.5),
    )
    applied = apply_schedule(
        model, schedule, profile=profile, configs=configs_for(PruningConfig()), calibration=(images,)
    )
    before, after = sizes_of(applied, model)
    counted = true_figures(schedule, profile, groups)
    assert counted["params"] == pytest.approx(after.figure("params", before), abs=1e-9)
    assert counted["macs"] == pytest.approx(after.figure("macs", before), abs=1e-5)
    assert counted["bytes"] == pytest.approx(after.figure("bytes", before), abs=0.015)  # biases and norms go too
    assert 0.1 < counted["params"] < 0.9


def test_other_compressions_couple_nothing():
    run = a_run(profile_model(build_demo_network().eval(), torch.randn(1, 1, 32, 32)))
    assert couplings_of(build_demo_network(), replace(run, spec=RunSpec())) == ()
