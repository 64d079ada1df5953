"""What holds for every schedule: applying it is exact, and touches nothing but the copy."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from senseapp.compressions import SparsityConfig
from senseapp.networks.profile import profile_model
from senseapp.reconstruct.apply import apply_schedule, configs_for, sizes_of
from senseapp.records.schedule import Schedule, ScheduleEntry
from tests.cases import examples

IMAGES = torch.randn(8, 2, 6, 6, generator=torch.Generator().manual_seed(1))
LAYERS = {"0": 90, "3": 270, "6": 36}
fractions = st.floats(0.02, 0.98)
treatments = st.one_of(
    st.none(),
    st.tuples(st.just("sparsity"), fractions),
    st.tuples(st.just("quantization"), st.integers(2, 8).map(float)),
)


def a_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 5, 3),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.Conv2d(5, 6, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 6),
    ).eval()


NETWORK = a_network()
PROFILE = profile_model(NETWORK, IMAGES[:1])


def applied_to(chosen):
    entries = tuple(
        ScheduleEntry(layer=layer, members=(layer,), compression=treatment[0], level=treatment[1])
        for layer, treatment in zip(LAYERS, chosen, strict=True)
        if treatment is not None
    )
    schedule = Schedule(model="net", method="manual", entries=entries)
    return apply_schedule(
        NETWORK, schedule, profile=PROFILE, configs=configs_for(SparsityConfig()), calibration=(IMAGES,)
    )


@settings(max_examples=examples(60), deadline=None)
@given(st.tuples(treatments, treatments, treatments))
def test_each_layer_holds_exactly_what_the_schedule_says(chosen):
    applied = applied_to(chosen)
    for (layer, count), treatment in zip(LAYERS.items(), chosen, strict=True):
        weight = applied.model.get_submodule(layer).weight
        if treatment is None:
            assert torch.equal(weight, NETWORK.get_submodule(layer).weight)
        elif treatment[0] == "sparsity":
            assert int((weight == 0).sum()) == math.floor(treatment[1] * count + 1e-9)
        else:
            rows = weight.flatten(1)
            assert all(len(row.unique()) <= 2 ** int(treatment[1]) - 1 for row in rows)
    before, after = sizes_of(applied, NETWORK)
    assert after.compact_bytes <= before.compact_bytes
    assert after.macs <= before.macs
    assert after.params == before.params
