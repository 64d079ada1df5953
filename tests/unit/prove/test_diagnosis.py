"""Faults planted in small networks are named, and nothing is named where none was planted."""

import pytest
import torch
from torch import nn

from senseapp.compressions import QuantizationConfig
from senseapp.measure.session import Session
from senseapp.prove.diagnosis import diagnose, findings_of
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.records.layer_findings import Diagnosis, Remedy, shares_of_damage
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.views.words.wording import remedy_text
from tests.pages.records import FRAGILE, NAMES, change, result

TRIALS = 30


def a_network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    width = 16 + 8 * (seed % 3)
    network = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10),
    )  # fmt: skip
    return network.eval()


def plant(network: nn.Sequential, kind: str, seed: int) -> None:
    """Harm the second convolution, or what it reads."""
    channel = seed % 16
    with torch.no_grad():
        if kind == "scaled channel":
            network[3].weight[channel] *= 40
        elif kind == "outlier weight":
            network[3].weight[channel, 1, 1, 1] = 40 * network[3].weight.abs().max()
        elif kind == "outlier input":
            network[1].weight[channel], network[1].bias[channel] = 60, 60


@pytest.mark.parametrize("kind", ["scaled channel", "outlier weight", "outlier input"])
def test_planted_faults_are_named(kind) -> None:
    named = 0
    for seed in range(TRIALS):
        network = a_network(seed)
        plant(network, kind, seed)
        named += kind in [each.kind for each in findings_of(network, [torch.randn(8, 3, 8, 8)], "3")]
    assert named >= 0.95 * TRIALS


def test_nothing_is_named_where_nothing_was_planted() -> None:
    found = [findings_of(a_network(seed), [torch.randn(8, 3, 8, 8)], "3") for seed in range(TRIALS)]
    assert sum(map(bool, found)) <= 0.05 * TRIALS


def test_the_remedy_is_the_one_that_was_measured_to_gain_most() -> None:
    lost = change("kl", 0.4, 0.1)
    tried = (Remedy(label="One scale per channel", change=change("kl", 0.1, 0.1)),)
    found = Diagnosis(layer="fc", level=4, findings=(), change=lost, remedies=tried)
    assert remedy_text(found) == "One scale per channel leaves 25 % of what it loses (measured, 512 images)."
    useless = (Remedy(label="Repair without training", change=change("kl", 0.5, 0.1)),)
    worse = Diagnosis(layer="fc", level=4, findings=(), change=lost, remedies=useless)
    assert remedy_text(worse).startswith("Nothing that was tried helps")


def test_shares_are_those_of_a_plain_sum() -> None:
    run = result()
    for level, share in shares_of_damage(run, FRAGILE, "kl").items():
        losses = {item.layer: item.change("kl").delta for item in run.measurements if item.level == level}
        assert share == pytest.approx(losses[FRAGILE] / sum(losses[name] for name in NAMES))


@pytest.mark.slow
def test_a_scaled_channel_is_healed_by_a_scale_for_each(few_digits) -> None:
    config = QuantizationConfig(granularity="tensor")
    spec = SensitivitySpec(compression=config, levels=(4,), layers=("layer4.1.conv1",), num_samples=64)
    session = Session.open(RunSpec(sensitivity=spec))
    measured = session.result(list(session.measure()))
    found = diagnose(ScheduleEvaluator.open(measured), "layer4.1.conv1", 4)
    assert found.change.delta == pytest.approx(measured.measurements[0].change("kl").delta, rel=1e-3)
    remedies = {each.label: each.change.delta for each in found.remedies}
    assert set(remedies) == {"One scale per channel", "Repair without training", "Adapted weights"}
    assert remedies["Adapted weights"] < found.change.delta
    assert [each.change.delta for each in found.remedies] == sorted(remedies.values())
