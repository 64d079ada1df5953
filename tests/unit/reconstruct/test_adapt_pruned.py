"""What the readers of removed channels take over, against numpy and against channels that nothing is lost with."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from timm.layers import Conv2dSame
from torch import nn

from senseapp.compressions import PruningConfig
from senseapp.data.images import TensorImages
from senseapp.measure.context import MeasurementContext
from senseapp.measure.session import Session
from senseapp.networks.profile import profile_model
from senseapp.prove.evaluator import ProofImages, ScheduleEvaluator
from senseapp.prove.repair_choice import measured
from senseapp.reconstruct.adapt.pruned import Reconstruction, taken_over
from senseapp.reconstruct.apply import AppliedModel, apply_schedule, configs_for
from senseapp.reconstruct.repair import Matching, Reference
from senseapp.records.schedule import Schedule, ScheduleEntry
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.solve.problem import manual_schedule
from senseapp.tasks import CLASSIFICATION

IMAGES = torch.randn(12, 2, 9, 9, generator=torch.Generator().manual_seed(3))
HALF = 4  # of the eight channels of the first layer


class Network(nn.Module):
    """Eight channels, the last four weaker copies of the first; a depthwise layer between them and what reads them."""

    def __init__(self, reader: nn.Module, *, norm: bool) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first = nn.Conv2d(2, 8, 3, bias=not norm)
        self.norm = nn.BatchNorm2d(8) if norm else nn.Identity()
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.reader = reader
        self.head = nn.Linear(6, 5)
        for parameter in (*self.first.parameters(), self.depthwise.weight):
            parameter.data[HALF:] = 0.5 * parameter.data[:HALF]
        self.reader.weight.data *= 10
        self.reader.weight.data[:, self.reader.weight.shape[1] // 2 :] *= 0.2
        self.eval().requires_grad_(False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        inner = self.depthwise(self.norm(self.first(images)).relu())
        if isinstance(self.reader, nn.Linear):
            inner = self.reader(inner.movedim(1, -1)).movedim(-1, 1)
        else:
            inner = self.reader(inner)
        scores: torch.Tensor = self.head(inner.relu().mean((2, 3)))
        return scores


READERS = {
    "strided": lambda: nn.Conv2d(8, 6, 3, stride=2, padding=1),
    "dilated, no bias": lambda: nn.Conv2d(8, 6, 2, dilation=2, bias=False),
    "same padding": lambda: Conv2dSame(8, 6, 3, stride=2),
    "reflecting": lambda: nn.Conv2d(8, 6, 3, padding=1, padding_mode="reflect"),
    "grouped": lambda: nn.Conv2d(8, 6, 1, groups=2),
    "linear": lambda: nn.Linear(8, 6),
}


def halved(dense: nn.Module) -> AppliedModel:
    profile = profile_model(dense, IMAGES[:1])
    entry = ScheduleEntry(layer="first", members=("first", "depthwise"), compression="pruning", level=0.5)
    schedule = Schedule(model=profile.title, method="manual", entries=(entry,))
    return apply_schedule(dense, schedule, profile=profile, configs=configs_for(), calibration=[IMAGES])


def reconstruction(applied: AppliedModel, dense: nn.Module, parts: int = 1) -> Reconstruction:
    batches = IMAGES.chunk(parts)
    matching = Matching(applied.model, Reference(dense, batches), kept=applied.kept_channels, scale=False)
    context = MeasurementContext.prepare(dense, TensorImages(IMAGES), own=True, task=CLASSIFICATION)
    return Reconstruction(context, applied, batches, matching)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("reader", READERS)
def test_what_copies_of_the_kept_channels_contributed_is_taken_over_exactly(reader, norm):
    dense = Network(READERS[reader](), norm=norm)
    if reader == "grouped":  # each group loses two channels, and keeps two that tell of them
        for parameter in (*dense.first.parameters(), dense.depthwise.weight):
            parameter.data[[2, 3, 6, 7]] = 0.5 * parameter.data[[0, 1, 4, 5]]
    applied = halved(dense)
    wanted, before = dense(IMAGES), applied.model(IMAGES)
    repair = reconstruction(applied, dense)
    assert repair.readers == ["reader"]
    assert repair.fit()
    assert (applied.model(IMAGES) - wanted).abs().max() < 0.01 * (before - wanted).abs().max()


def test_least_squares_equal_those_of_numpy():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(6, 20, 5, generator=generator) + 1
    wanted = inputs @ torch.randn(5, 3, generator=generator) + 2 + 1e-3 * torch.randn(6, 20, 3, generator=generator)
    weight, bias = taken_over(inputs, wanted, torch.zeros(3, 5))
    rows = np.hstack([inputs.flatten(0, 1).double(), np.ones((120, 1))])
    expected = np.linalg.lstsq(rows, wanted.flatten(0, 1).double().numpy(), rcond=None)[0]
    np.testing.assert_allclose(weight.numpy(), expected[:5].T, atol=1e-4)
    np.testing.assert_allclose(bias.numpy(), expected[5], atol=1e-4)


def test_weights_stay_where_the_inputs_tell_nothing_of_other_images():
    generator = torch.Generator().manual_seed(0)
    inputs, wanted = torch.randn(8, 1, 30, generator=generator), 3 + torch.randn(8, 1, 4, generator=generator)
    weight = torch.zeros(4, 30)
    found, bias = taken_over(inputs, wanted, weight)
    assert torch.equal(found, weight.double())
    torch.testing.assert_close(bias, wanted.double().mean((0, 1)))
    assert torch.equal(taken_over(inputs[:1], wanted[:1], weight)[0], weight.double())


@pytest.mark.parametrize("parts", [1, 3])
def test_a_fit_repeats_itself_and_is_undone_to_the_bit(parts):
    dense = Network(READERS["strided"](), norm=True)
    dense.first.weight += 0.1 * torch.randn(dense.first.weight.shape, generator=torch.Generator().manual_seed(5))
    applied = halved(dense)
    before = copy.deepcopy(applied.model.state_dict())
    lost = (applied.model(IMAGES) - dense(IMAGES)).square().mean()
    repair = reconstruction(applied, dense, parts)
    assert repair.fit()
    first = copy.deepcopy(applied.model.state_dict())
    assert (applied.model(IMAGES) - dense(IMAGES)).square().mean() < 0.5 * lost
    with repair.fitted([0]):
        pass
    assert all(torch.equal(value, before[name]) for name, value in applied.model.state_dict().items())
    assert repair.fit()
    assert all(torch.equal(value, first[name]) for name, value in applied.model.state_dict().items())


def test_a_pruned_network_is_delivered_with_the_repair_that_loses_less_on_held_out_images():
    spec = SensitivitySpec(compression=PruningConfig(), levels=(0.75,), layers=("layer[23].?.conv1",), num_samples=64)
    session = Session.open(RunSpec(sensitivity=spec))
    opened = ScheduleEvaluator.open(session.result(list(session.measure())))
    images = opened.images
    evaluator = replace(
        opened,
        images=ProofImages(curves=images.curves.subset(range(48)), proof=images.proof.subset(range(60)), note=""),
    )
    levels = {item.layer: item.level for item in evaluator.result.measurements if item.changes}
    applied = evaluator.apply(manual_schedule(evaluator.result, levels))
    statistics = evaluator.apply(manual_schedule(evaluator.result, levels))
    evaluator.matching(statistics).fit()
    found = measured(evaluator, applied, "kl", repair=True, adapting="minutes")
    losses = [
        next(c.delta for c in changes if c.metric == "kl")
        for changes in (found.best, evaluator.judged(statistics).changes)
    ]
    assert [step.kept for step in found.steps] == [False, False, True]
    assert found.delivered == "adapted"
    assert losses[0] < 0.5 * losses[1]
    assert "read removed channels" in found.notes[0]
