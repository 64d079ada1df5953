"""``senseapp.histogram``: what a notebook gets of its own network."""

from __future__ import annotations

import warnings
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import senseapp
from senseapp.core.errors import InvalidDataset, InvalidSpec, MeasurementFailed, NoLayersSelected, UnsupportedModel
from senseapp.measure.histograms import image_set


@pytest.fixture
def model():
    torch.manual_seed(0)
    parts = {
        "conv1": nn.Conv2d(3, 4, 3), "bn1": nn.BatchNorm2d(4), "relu": nn.ReLU(inplace=True),
        "conv2": nn.Conv2d(4, 5, 3), "pool": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten(), "fc": nn.Linear(5, 3),
    }  # fmt: skip
    net = nn.Sequential()
    for name, part in parts.items():
        net.add_module(name, part)
    nn.init.constant_(net.bn1.running_var, 4)
    return net.train()


IMAGES = torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(12) % 3


def test_it_returns_a_frame_and_a_chart(model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    frame, chart = senseapp.histogram(model, IMAGES, layers="conv*", bits=4, tensor="weights")
    assert list(dict.fromkeys(frame["layer"])) == ["conv1", "conv2"]
    sums = frame.groupby("layer")["count"].sum()
    assert sums.to_dict() == {"conv1": 108, "conv2": 180}
    assert frame["sensitivity"].sum() > 0
    assert [part["title"]["text"] for part in chart.to_dict()["concat"]] == ["conv1", "conv2"]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert model.bn1.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_weights_on_their_grid_are_those_of_a_histogram_by_hand(model):
    frame, chart = senseapp.histogram(model, IMAGES, layers="fc", bits=3)
    edges = [*frame["start"], frame["end"].iloc[-1]]
    assert all(left < right for left, right in pairwise(edges))
    counts = torch.histogram(model.fc.weight.detach().double(), torch.tensor(edges, dtype=torch.float64)).hist
    assert frame["count"].tolist() == counts.tolist()
    assert "concat" not in chart.to_dict()


@pytest.mark.parametrize("tensor", ["weights", "activations", "outputs"])
@pytest.mark.parametrize("objective", ["output", "loss", "mean"])
def test_each_tensor_has_each_gradient(model, tensor, objective):
    frame, _ = senseapp.histogram(model, (IMAGES, LABELS), ["conv2"], bits=2, tensor=tensor, objective=objective)
    model.eval()
    taken = []
    values = model.conv2.weight
    if tensor != "weights":

        def swap(_module, args, output=None):
            taken.append((args[0] if output is None else output).detach().clone().requires_grad_())
            return taken[0].clone() if output is not None else (taken[0].clone(),)

        register = model.conv2.register_forward_hook if tensor == "outputs" else model.conv2.register_forward_pre_hook
        register(swap)
    scores = model(IMAGES)
    values = taken[0] if taken else values
    value = {
        "output": lambda: scores.amax(dim=1).sum(),
        "mean": lambda: scores.mean(dim=1).sum(),
        "loss": lambda: nn.functional.cross_entropy(scores, LABELS, reduction="sum"),
    }[objective]()
    (gradient,) = torch.autograd.grad(value, values)
    assert frame["count"].sum() == values.numel()
    assert frame["sensitivity"].sum() == pytest.approx(float(gradient.abs().sum()), rel=1e-4)
    assert frame["gradient_sum"].sum() == pytest.approx(float(gradient.sum()), rel=1e-3, abs=1e-4)


def test_folding_leaves_the_callers_model_as_it_is(model):
    plain, _ = senseapp.histogram(model, IMAGES, "conv1", objective="none")
    folded, _ = senseapp.histogram(model, IMAGES, "conv1", objective="none", fold=True)
    assert plain["end"].iloc[-1] == pytest.approx(2 * folded["end"].iloc[-1], rel=1e-4)
    assert float(model.bn1.running_var[0]) == 4


def test_images_come_as_a_tensor_a_pair_or_a_loader():
    loader = DataLoader(TensorDataset(IMAGES, LABELS), batch_size=5)
    for images, labels in (
        (IMAGES, None),
        ((IMAGES, LABELS), LABELS),
        (loader, LABELS),
        ([IMAGES[:5], IMAGES[5:]], None),
    ):
        found = image_set(images, 8)
        assert torch.equal(found.batch(0, 8), IMAGES[:8])
        assert len(found) == 8
        assert (found.labels is None) if labels is None else torch.equal(found.labels, labels[:8])
    assert torch.equal(image_set(image_set(IMAGES, 8), 3).batch(0, 3), IMAGES[:3])


@pytest.mark.parametrize(
    ("images", "words"),
    [
        ([], "at least one"),
        ((IMAGES, LABELS[:3]), "shape \\(3,\\) as labels"),
        (["a.png"], "got a str"),
        ((1, 2), "a int"),
    ],
)
def test_what_are_no_images_is_said_in_one_sentence(model, images, words):
    with pytest.raises(InvalidDataset, match=words):
        senseapp.histogram(model, images)


def test_settings_out_of_range_and_unknown_layers_are_refused(model):
    with pytest.raises(NoLayersSelected, match="conv1"):
        senseapp.histogram(model, IMAGES, "layer*")
    with pytest.raises(InvalidSpec, match="weights, activations, outputs"):
        senseapp.histogram(model, IMAGES, tensor="inputs")
    with pytest.raises(InvalidDataset, match="labels"):
        senseapp.histogram(model, IMAGES, objective="loss")


def test_a_layer_without_a_histogram_is_told_in_a_warning(model):
    with torch.no_grad():
        model.conv1.weight[0, 0, 0, 0] = float("inf")
    with pytest.warns(UserWarning, match="conv1 holds values that are not finite"):
        frame, _ = senseapp.histogram(model, IMAGES, "conv*", objective="none")
    assert set(frame["layer"]) == {"conv2"}
    with warnings.catch_warnings(), pytest.raises(MeasurementFailed, match="not finite"):
        senseapp.histogram(model, IMAGES, "conv1", objective="none")
    with pytest.raises(UnsupportedModel, match="conv1"):  # with it no layer has gradients
        senseapp.histogram(model, IMAGES, "conv2")
