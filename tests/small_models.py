"""Tiny networks and images for the tests of the sweep, the replay and the notebook API."""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from senseapp.data.images import TensorImages

NUM_CLASSES = 6
Fingerprint = dict[str, object]


def chain(depth: int = 4, width: int = 8) -> nn.Sequential:
    """Return convolutions in a row, with in-place activations, and a classifier."""
    parts: list[tuple[str, nn.Module]] = []
    for index in range(depth):
        parts.append((f"conv{index}", nn.Conv2d(width if index else 3, width, 3, padding=1)))
        parts.append((f"relu{index}", nn.ReLU(inplace=True)))
    parts += [("pool", nn.AdaptiveAvgPool2d(1)), ("flat", nn.Flatten()), ("head", nn.Linear(width, NUM_CLASSES))]
    return nn.Sequential(OrderedDict(parts)).eval()


class Residual(nn.Module):
    """Two residual blocks with norms, in-place activations and in-place sums."""

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
            self.norm1 = nn.BatchNorm2d(width)
            self.relu = nn.ReLU(inplace=True)
            self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv2(self.relu(self.norm1(self.conv1(x))))
            y += x
            return self.relu(y)

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.Sequential(self.Block(width), self.Block(width))
        self.head = nn.Linear(width, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def small_network(seed: int = 0) -> nn.Module:
    """Return a :class:`Residual` with lively weights, in ``eval()`` mode."""
    torch.manual_seed(seed)
    model = Residual().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    return model


def images_for(num_images: int = 24, *, seed: int = 0, size: int = 8, labels: Tensor | None = None) -> TensorImages:
    """Return random labelled images (N, 3, size, size)."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(num_images, 3, size, size, generator=generator)
    if labels is None:
        labels = torch.randint(NUM_CLASSES, (num_images,), generator=generator)
    return TensorImages(images, labels)


def fingerprint(model: nn.Module) -> Fingerprint:
    """Return everything that a measurement must give back: values, addresses, flags, hooks and attributes."""
    found: Fingerprint = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        found[f"tensor {name}"] = (tensor.detach().clone().tolist(), id(tensor), tensor.data_ptr(), tensor.stride())
        found[f"grad {name}"] = (tensor.requires_grad, None if tensor.grad is None else tensor.grad.tolist())
    for name, module in model.named_modules():
        kept = {key: value for key, value in module.__dict__.items() if not key.startswith("_")}
        found[f"attributes {name}"] = sorted(module.__dict__)
        found[f"values {name}"] = {key: repr(value) for key, value in kept.items()}
        found[f"hooks {name}"] = [
            len(value) for key, value in sorted(module.__dict__.items()) if "hooks" in key and value
        ]
        found[f"children {name}"] = [id(child) for child in module.children()]
    return found
