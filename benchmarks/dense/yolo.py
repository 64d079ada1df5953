"""A narrow detector as YOLOX builds them: cross-stage stages, a path-aggregating neck, decoupled heads, SiLU.

Its modules are numbered, as those of Ultralytics' networks.

Source: Ge et al. (2021), YOLOX: Exceeding YOLO Series in 2021, section 2.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_WIDTHS = (16, 32, 64, 128)
_STRIDES = (8, 16, 32)


def _unit(inputs: int, outputs: int, size: int = 1, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.SiLU())


class CrossStage(nn.Module):
    """Half of the channels go through residual units, half past them."""

    def __init__(self, inputs: int, outputs: int, *, residual: bool = True) -> None:
        super().__init__()
        half = outputs // 2
        self.through, self.past = _unit(inputs, half), _unit(inputs, half)
        self.units = nn.Sequential(_unit(half, half), _unit(half, half, 3))
        self.joined, self.residual = _unit(outputs, outputs), residual

    def forward(self, values: Tensor) -> Tensor:
        """Return (N, outputs, H, W)."""
        found = self.through(values)
        found = found + self.units(found) if self.residual else self.units(found)
        joined: Tensor = self.joined(torch.cat([found, self.past(values)], 1))
        return joined


class Head(nn.Module):
    """Scores and boxes of one map, by branches of their own."""

    def __init__(self, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        self.stem = _unit(inputs, width)
        self.scores = nn.Sequential(_unit(width, width, 3), _unit(width, width, 3), nn.Conv2d(width, classes, 1))
        self.towers = nn.Sequential(_unit(width, width, 3), _unit(width, width, 3))
        self.boxes, self.objects = nn.Conv2d(width, 4, 1), nn.Conv2d(width, 1, 1)

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return boxes (N, 4, H, W), logits of objects (N, 1, H, W) and of classes (N, classes, H, W)."""
        stem = self.stem(values)
        tower = self.towers(stem)
        return self.boxes(tower), self.objects(tower), self.scores(stem)


class YoloLike(nn.Module):
    """Maps of strides 8, 16 and 32, decoded; it returns raw heads as senseapp's opened detectors do."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        first, second, third, fourth = _WIDTHS
        self.backbone = nn.ModuleList(
            [
                nn.Sequential(_unit(3, first, 3, 2), _unit(first, first, 3, 2), CrossStage(first, first)),
                nn.Sequential(_unit(first, second, 3, 2), CrossStage(second, second)),
                nn.Sequential(_unit(second, third, 3, 2), CrossStage(third, third)),
                nn.Sequential(_unit(third, fourth, 3, 2), CrossStage(fourth, fourth)),
            ]
        )
        self.units = nn.ModuleList(
            [_unit(fourth, third), _unit(third, second), _unit(second, second, 3, 2), _unit(third, third, 3, 2)]
        )
        self.stages = nn.ModuleList(
            CrossStage(inputs, outputs, residual=False)
            for inputs, outputs in ((2 * third, third), (2 * second, second), (2 * second, third), (2 * third, fourth))
        )
        self.upsample = nn.Upsample(scale_factor=2)
        self.heads = nn.ModuleList(Head(width, second, classes) for width in (second, third, fourth))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Return ``boxes`` (N, A, 4) in pixels, ``sigmoid_logits`` (N, A, K) and ``centerness_logits`` (N, A, 1)."""
        stem, first, second, third = self.backbone
        small = first(stem(images))
        middle = second(small)
        top = self.units[0](third(middle))
        joined = self.units[1](self.stages[0](torch.cat([self.upsample(top), middle], 1)))
        lowest = self.stages[1](torch.cat([self.upsample(joined), small], 1))
        centre = self.stages[2](torch.cat([self.units[2](lowest), joined], 1))
        highest = self.stages[3](torch.cat([self.units[3](centre), top], 1))
        found = [head(each) for head, each in zip(self.heads, (lowest, centre, highest), strict=True)]
        boxes = [_decoded(each, stride) for (each, _, _), stride in zip(found, _STRIDES, strict=True)]
        objects, scores = (torch.cat([each[index].flatten(2).transpose(1, 2) for each in found], 1) for index in (1, 2))
        return {"boxes": torch.cat(boxes, 1), "sigmoid_logits": scores, "centerness_logits": objects}


def _decoded(offsets: Tensor, stride: int) -> Tensor:
    """Return boxes (N, H · W, 4) as corners in pixels."""
    height, width = offsets.shape[-2:]
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    centres = (offsets[:, :2] + torch.stack([columns, rows]).to(offsets)) * stride
    halves = offsets[:, 2:].clamp(max=4).exp() * stride / 2
    return torch.cat([centres - halves, centres + halves], 1).flatten(2).transpose(1, 2)
