"""Norms folded into what they follow: the same outputs while it lasts, everything back afterwards, traps left alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

from senseapp.measure.histograms import foldable_norms, norms_folded
from senseapp.networks.trace import trace_calls
from tests.cases import seldom

WIDTH, PIXELS = 6, 32


def lively(model: nn.Module) -> nn.Module:
    """Give every norm statistics and parameters of its own."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm2d)):
            for values in (norm.running_mean, norm.weight, norm.bias):
                if values is not None:
                    values.copy_(torch.randn(values.shape, generator=generator))
            if norm.running_var is not None:
                norm.running_var.copy_(torch.rand(norm.running_var.shape, generator=generator) + 0.5)
    return model.eval()


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def assert_as_before(model: nn.Module, tensors: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    now = tensors_of(model)
    assert now.keys() == tensors.keys()
    assert all(now[name] is tensors[name] and torch.equal(now[name], values[name]) for name in now)
    assert not any("forward" in module.__dict__ for module in model.modules())


def found_in(model: nn.Module) -> set[str]:
    return set(foldable_norms(trace_calls(model, torch.randn(1, 3, PIXELS, PIXELS)), model))


@pytest.mark.parametrize(
    ("build", "count"),
    [
        (lambda: timm.create_model("resnet10t", num_classes=5), 14),
        seldom((lambda: torchvision.models.mobilenet_v2(num_classes=5), 52)),
        seldom((lambda: torchvision.models.densenet121(num_classes=5), 59)),
    ],
    ids=["resnet", "mobilenet", "densenet"],
)
@torch.no_grad()
def test_outputs_stay_while_norms_are_folded_and_everything_comes_back(
    build: Callable[[], nn.Module], count: int
) -> None:
    torch.manual_seed(0)
    model = lively(build())
    pictures = torch.randn(2, 3, PIXELS, PIXELS)
    norms = foldable_norms(trace_calls(model, pictures[:1]), model)
    assert len(norms) == count
    before, tensors = model(pictures), tensors_of(model)
    values = {name: tensor.clone() for name, tensor in tensors.items()}
    with norms_folded(model, norms):
        inside = model(pictures)
    assert torch.allclose(inside, before, rtol=1e-4, atol=1e-4 * float(before.abs().max()))
    assert_as_before(model, tensors, values)


@torch.no_grad()
def test_a_norm_with_an_activation_inside_keeps_that_while_it_is_folded() -> None:
    model = lively(OwnNorm())
    pictures = torch.randn(2, 3, PIXELS, PIXELS)
    norms = foldable_norms(trace_calls(model, pictures[:1]), model)
    before, tensors = model(pictures), tensors_of(model)
    values = {name: tensor.clone() for name, tensor in tensors.items()}
    with norms_folded(model, norms):
        torch.testing.assert_close(model(pictures), before, rtol=1e-4, atol=1e-5)
        assert not torch.equal(model.layer.weight, values["layer.weight"])
    assert list(norms) == ["layer"]
    assert_as_before(model, tensors, values)


def test_everything_comes_back_after_an_error() -> None:
    model = lively(nn.Sequential(nn.Conv2d(3, WIDTH, 3), nn.BatchNorm2d(WIDTH)))
    tensors = tensors_of(model)
    values = {name: tensor.clone() for name, tensor in tensors.items()}
    with pytest.raises(KeyError), norms_folded(model, {"0": model[1]}):
        raise KeyError
    assert_as_before(model, tensors, values)


def normed(net: Trap, x: Tensor) -> Tensor:
    return net.norm(net.layer(x))


class Trap(nn.Module):
    """A layer and a norm that cannot be one, for a reason of each subclass, or of what ``compute`` does with them."""

    def __init__(self, compute: Callable[[Trap, Tensor], Tensor] = normed) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.norm: Any = nn.BatchNorm2d(WIDTH)
        self.compute = compute

    def forward(self, x: Tensor) -> Any:
        return self.compute(self, x).mean((2, 3))


class InABlock(Trap):
    """The norm stands in front of another layer, in a block of theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Sequential(nn.BatchNorm2d(WIDTH), nn.ReLU(), nn.Conv2d(WIDTH, WIDTH, 1))


class NotNext(Trap):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Sequential(nn.Identity(), nn.BatchNorm2d(WIDTH))


class TiedWeight(Trap):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.other.weight = self.layer.weight

    def forward(self, x: Tensor) -> Any:
        return super().forward(x) + self.other(x).mean((2, 3))


class NotAffine(Trap):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(WIDTH, affine=False)


class OfTheBatch(Trap):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(WIDTH, track_running_stats=False)


class OwnNorm(Trap):
    class Norm(nn.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).relu()

    def __init__(self) -> None:
        super().__init__()
        self.norm = self.Norm(WIDTH)


class Hooked(Trap):
    def __init__(self) -> None:
        super().__init__()
        self.layer.register_forward_hook(lambda _module, _args, output: output * 2)


class Parametrized(Trap):
    def __init__(self) -> None:
        super().__init__()
        nn.utils.parametrizations.weight_norm(self.layer)


USES: dict[str, Callable[[Trap, Tensor], Tensor]] = {
    "read elsewhere": lambda net, x: net.norm(y := net.layer(x)) + y,
    "read before": lambda net, x: (y := net.layer(x)).mean() + net.norm(y),
    "scaled between": lambda net, x: net.norm(net.layer(x) * 2),
    "changed between": lambda net, x: net.norm(net.layer(x).add_(1)),
    "layer twice": lambda net, x: normed(net, x) + net.layer(x),
    "norm twice": lambda net, x: normed(net, x) + net.norm(x.repeat(1, 2, 1, 1)),
    "weight read elsewhere": lambda net, x: normed(net, x) + net.layer.weight.mean(),
    "bias read elsewhere": lambda net, x: normed(net, x) + net.layer.bias.mean(),  # type: ignore[union-attr]
}
BUILT = (InABlock, NotNext, TiedWeight, NotAffine, OfTheBatch, Hooked, Parametrized)


@pytest.mark.parametrize(
    "trap", [*(partial(Trap, use) for use in USES.values()), *BUILT], ids=[*USES, *map(str, BUILT)]
)
def test_what_must_not_be_folded_is_left_alone(trap: Callable[[], nn.Module]) -> None:
    assert found_in(lively(trap())) == set()


def test_a_plain_pair_is_found() -> None:
    assert found_in(lively(Trap())) == {"layer"}
