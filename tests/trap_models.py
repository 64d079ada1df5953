"""Small networks whose code does something that makes replay hard."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import StochasticDepth

WIDTH = 6
NUM_CLASSES = 4
PIXELS = 8


class Trap(nn.Module):
    """A stem, something in the middle, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.norm = nn.BatchNorm2d(WIDTH)
        self.first = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.second = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.head = nn.Linear(WIDTH, NUM_CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.middle(self.norm(self.stem(x))).mean((2, 3)))

    def middle(self, x: Tensor) -> Tensor:
        return self.second(F.relu(self.first(x)))


class SharedModule(Trap):
    def middle(self, x: Tensor) -> Tensor:
        return self.second(F.relu(self.first(F.relu(self.first(x)))))


class SharedActivation(Trap):
    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU(inplace=True)

    def middle(self, x: Tensor) -> Tensor:
        return self.relu(self.second(self.relu(self.first(self.relu(x)))))


class InPlaceShortcut(Trap):
    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU(inplace=True)

    def middle(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.second(self.relu(self.first(x)))
        x += shortcut
        return self.relu(x)


class OverwrittenShortcut(Trap):
    def middle(self, x: Tensor) -> Tensor:
        x += self.first(x)
        x *= 0.5
        return self.second(x)


class OverwrittenInput(Trap):
    def forward(self, x: Tensor) -> Tensor:
        x.sub_(0.5).div_(0.2)
        return super().forward(x)


class ReadAfterOverwrite(Trap):
    """``z`` is ``y``: what the functional code adds is not what the norm returned."""

    def __init__(self) -> None:
        super().__init__()
        self.second_norm = nn.BatchNorm2d(WIDTH)

    def middle(self, x: Tensor) -> Tensor:
        y = self.second_norm(self.first(x))
        return self.second(y + F.relu_(y))


class ReadAfterModuleOverwrite(ReadAfterOverwrite):
    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU(inplace=True)

    def middle(self, x: Tensor) -> Tensor:
        y = self.second_norm(self.first(x))
        return self.second(y + self.relu(y))


class OverwrittenView(Trap):
    def __init__(self) -> None:
        super().__init__()
        self.flatten = nn.Flatten(2)

    def middle(self, x: Tensor) -> Tensor:
        y = self.first(x)
        self.flatten(y).add_(0.3)
        return self.second(y)


class FunctionalUse(Trap):
    def middle(self, x: Tensor) -> Tensor:
        x = F.conv2d(x, self.first.weight * 1.5, self.first.bias, padding=1)
        return F.conv2d(x, self.second.weight, self.second.bias, padding=1)


class FreeParameter(Trap):
    """The weight standardised by functional code, then used."""

    def middle(self, x: Tensor) -> Tensor:
        weight = self.first.weight
        weight = (weight - weight.mean((1, 2, 3), keepdim=True)) / weight.std((1, 2, 3), keepdim=True)
        return self.second(F.relu(F.conv2d(x, weight, self.first.bias, padding=1)))


class DropoutAndDepth(Trap):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.depth = StochasticDepth(0.5, "row")

    def middle(self, x: Tensor) -> Tensor:
        return x + self.depth(self.second(self.dropout(F.relu(self.first(x)))))


class Attention(Trap):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True, **kwargs)

    def middle(self, x: Tensor) -> Tensor:
        tokens = self.first(x).flatten(2).transpose(1, 2)  # (N, H·W, C)
        mixed, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        return self.second((tokens + mixed).transpose(1, 2).unflatten(2, (PIXELS, PIXELS)))


class CrossAttention(Attention):
    def __init__(self) -> None:
        super().__init__(kdim=2 * WIDTH, vdim=WIDTH)

    def middle(self, x: Tensor) -> Tensor:
        tokens = self.first(x).flatten(2).transpose(1, 2)
        mixed, _ = self.attention(tokens, torch.cat([tokens, tokens], -1), tokens)
        return self.second((tokens + mixed).transpose(1, 2).unflatten(2, (PIXELS, PIXELS)))


class EncoderLayer(Trap):
    """torch runs it as one fused operation, without a call of any of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(WIDTH, 2, 12, batch_first=True)

    def middle(self, x: Tensor) -> Tensor:
        return self.encoder(self.first(x).flatten(2).transpose(1, 2)).transpose(1, 2).unflatten(2, (PIXELS, PIXELS))


class _Both(nn.Module):
    def __init__(self, make: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.left = nn.Conv2d(WIDTH, WIDTH, 1)
        self.right = nn.Conv2d(WIDTH, WIDTH, 1)
        self.make = make

    def forward(self, x: Tensor) -> Any:
        return self.make(self.left(x), self.right(x))


def _as_tuple(left: Tensor, right: Tensor) -> Any:
    return left, {"right": [right, None]}


def _as_dict(left: Tensor, right: Tensor) -> Any:
    return {"left": left, "right": right, "scale": 0.5}


class ReturnsTuple(Trap):
    def __init__(self) -> None:
        super().__init__()
        self.both = _Both(_as_tuple)

    def middle(self, x: Tensor) -> Tensor:
        left, rest = self.both(self.first(x))
        return self.second(left * torch.sigmoid(rest["right"][0]))


class ReturnsDict(Trap):
    def __init__(self) -> None:
        super().__init__()
        self.both = _Both(_as_dict)

    def middle(self, x: Tensor) -> Tensor:
        parts = self.both(self.first(x))
        return self.second(parts["left"] + parts["scale"] * parts["right"])


class ReturnsInput(Trap):
    """``Identity`` and a dropout in eval return the very tensor that they are given, here also the model's input."""

    def __init__(self) -> None:
        super().__init__()
        self.same = nn.Identity()
        self.dropout = nn.Dropout(0.5)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.same(x))

    def middle(self, x: Tensor) -> Tensor:
        kept = self.same(x)
        return self.second(self.relu(self.same(self.first(self.dropout(kept))))) + kept


class TiedWeights(Trap):
    def __init__(self) -> None:
        super().__init__()
        self.second.weight = self.first.weight


class NeverRuns(Trap):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Conv2d(WIDTH, WIDTH, 3)


class _Gate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x.mean((2, 3), keepdim=True))


class Scripted(Trap):
    def __init__(self) -> None:
        super().__init__()
        self.gate = torch.jit.trace(_Gate(), torch.ones(1, WIDTH, PIXELS, PIXELS))

    def middle(self, x: Tensor) -> Tensor:
        return self.second(self.gate(self.first(x)))


class CallsForward(Trap):
    """Calls ``forward`` itself, past the hooks."""

    def middle(self, x: Tensor) -> Tensor:
        return self.second.forward(F.relu(self.first.forward(x)))


class Catches(Trap):
    """Tries a module that fails, and goes on without it."""

    class _Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) @ x[..., :1, :3]

    def __init__(self) -> None:
        super().__init__()
        self.fails = self._Fails()

    def middle(self, x: Tensor) -> Tensor:
        x = self.first(x)
        try:
            x = self.fails(x)
        except RuntimeError:
            x = x * 0.5
        return self.second(x)


class RandomOutput(Trap):
    def middle(self, x: Tensor) -> Tensor:
        return self.second(F.dropout(self.first(x), 0.3, training=True))


class RemembersBatch(Trap):
    """One module keeps what another, which is called later, reads behind the replay's back."""

    class _Stores(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.kept = x * 2
            return x

    def __init__(self) -> None:
        super().__init__()
        self.stores = self._Stores()

    def middle(self, x: Tensor) -> Tensor:
        x = self.second(F.relu(self.first(self.stores(x))))
        return x + self.stores.kept


class EarlyExit(Trap):
    """Bright images skip the second convolution; the first image is a dark one."""

    def middle(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return y if self.bright else self.second(F.relu(y))

    def forward(self, x: Tensor) -> Tensor:
        self.bright = bool(x.mean() > 0.5)
        if self.bright:
            return self.head(self.first(self.norm(self.stem(x))).mean((2, 3)))
        return super().forward(x)


class OrderByData(Trap):
    def forward(self, x: Tensor) -> Tensor:
        self.swapped = bool(x.mean() > 0.5)
        return super().forward(x)

    def middle(self, x: Tensor) -> Tensor:
        first, second = (self.second, self.first) if self.swapped else (self.first, self.second)
        return second(F.relu(first(x)))


class ReadByData(Trap):
    """Only bright images read the stem's output again, after everything that was watched is done with it."""

    def forward(self, x: Tensor) -> Tensor:
        stem = self.norm(self.stem(x))
        y = self.middle(stem)
        if x.mean() > 0.5:
            y = y + stem
        return self.head(y.mean((2, 3)))


REPLAYED: dict[str, Callable[[], nn.Module]] = {
    "plain": Trap,
    "shared module": SharedModule,
    "shared in-place activation": SharedActivation,
    "in-place shortcut": InPlaceShortcut,
    "overwritten shortcut": OverwrittenShortcut,
    "overwritten input": OverwrittenInput,
    "read after overwrite": ReadAfterOverwrite,
    "functional use": FunctionalUse,
    "standardised weight": FreeParameter,
    "dropout and stochastic depth": DropoutAndDepth,
    "attention": Attention,
    "cross attention": CrossAttention,
    "fused encoder layer": EncoderLayer,
    "tuple": ReturnsTuple,
    "dict": ReturnsDict,
    "returns its input": ReturnsInput,
    "tied weights": TiedWeights,
    "layer that never runs": NeverRuns,
    "scripted part": Scripted,
    "calls forward": CallsForward,
}
"""Replay must be right, and must be used."""

DETECTED: dict[str, Callable[[], nn.Module]] = {
    "overwritten view": OverwrittenView,
    "read after a module's overwrite": ReadAfterModuleOverwrite,
    "remembers its last batch": RemembersBatch,
    "early exit": EarlyExit,
    "order by data": OrderByData,
    "catches an error": Catches,
}
"""May be measured by whole passes; the numbers must be right, and a note must say so."""
