"""The other ways to choose levels that ours are compared with, against what they are by definition."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

from benchmarks.configurations import damage_together
from benchmarks.rivals import gradient_scores, greedy, with_pairs
from senseapp.compressions import QuantizationConfig
from senseapp.compressions.quantization.grid import fake_quantize_weight
from senseapp.records.schedule import ResourceBudget
from tests.compressors import compressor_of
from tests.schedule_cases import run_of

BITS = (4.0, 3.0, 2.0)
SIZES = {"a": 10, "b": 20, "c": 15, "fc": 5}
DAMAGES = {"a": (0.01, 0.2, 0.9), "b": (0.03, 0.04, 0.5), "c": (0.02, 0.1, 0.3), "fc": (0.0, 0.6, 0.7)}
PAIRS = {frozenset("ab"): -0.8, frozenset("ac"): 0.9, frozenset(("b", "fc")): 0.4}


def _bits(schedule):
    return {entry.layer: entry.level if entry.compression != "none" else 32.0 for entry in schedule.entries}


def _mean_bits(bits):
    return sum(SIZES[layer] * number for layer, number in bits.items()) / sum(SIZES.values())


def test_the_greedy_schedule_takes_the_least_noise_first():
    run = run_of(SIZES, DAMAGES, BITS, compression="quantization", metric="sqnr")
    # 4 bits of fc (.0), a (.01), c (.02) and b (.03); then 3 bits of b, whose .04 is the least
    everywhere = dict.fromkeys(SIZES, 4.0)
    assert _bits(greedy(run, ResourceBudget(kind="bits", target=4.0))) == everywhere
    assert _bits(greedy(run, ResourceBudget(kind="bits", target=3.6))) == everywhere | {"b": 3.0}
    assert _bits(greedy(run, ResourceBudget(kind="bits", target=3.5))) == everywhere | {"b": 3.0, "c": 3.0}


@pytest.mark.parametrize("target", [2.5, 3.0, 3.6, 9.0])
def test_no_change_of_two_layers_betters_the_schedule_with_pairs(target):
    run = run_of(SIZES, DAMAGES, BITS, compression="quantization")
    budget = ResourceBudget(kind="bits", target=target)

    def damage(bits):
        own = {layer: 0.0 if number == 32 else DAMAGES[layer][BITS.index(number)] for layer, number in bits.items()}
        return damage_together(own, PAIRS)

    found, alone = _bits(with_pairs(run, budget, PAIRS)), _bits(with_pairs(run, budget, {}))
    assert _mean_bits(found) <= target
    assert damage(found) <= damage(alone)
    for pair in itertools.combinations(SIZES, 2):
        for levels in itertools.product((32.0, *BITS), repeat=2):
            other = found | dict(zip(pair, levels, strict=True))
            assert _mean_bits(other) > target or damage(other) >= damage(found) - 1e-9


def test_scores_by_gradients_are_their_definition():
    torch.manual_seed(0)
    model, images = nn.Sequential(nn.Linear(5, 7), nn.ReLU(inplace=True), nn.Linear(7, 3)).eval(), torch.randn(40, 5)
    found = gradient_scores(model, images, compressor_of(model, QuantizationConfig()), (3.0,))
    hidden = functional.linear(images, model[0].weight, model[0].bias).detach().requires_grad_(True)
    outputs = model[2](hidden.relu())
    outputs.retain_grad()
    functional.cross_entropy(outputs, outputs.argmax(1), reduction="sum").backward()
    for index, given, gradient in ((0, images, hidden.grad), (2, hidden.detach().relu(), outputs.grad)):
        weight = model[index].weight.detach()
        change = given @ (fake_quantize_weight(weight, bits=3) - weight).T
        expected = float((gradient * change).square().sum())
        assert found[str(index), 3.0] == pytest.approx(expected, rel=1e-4)
