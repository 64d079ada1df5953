"""Small networks that are trained on coloured ellipses and rectangles, one for each task.

Their first convolution takes in the preparation that pictures must have, so that a file shows nothing of it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

COLOURS = {"red": (220, 40, 40), "green": (40, 190, 60), "blue": (50, 70, 220), "yellow": (230, 210, 40)}
COLOURS |= {"magenta": (215, 50, 200)}
NAMES = tuple(COLOURS)
EXTRA = 33  # further channels of the detector: its object's score and 32 coefficients
_SEEDS = np.random.SeedSequence(56).spawn(4)
Scene = tuple[NDArray[np.uint8], NDArray[np.float64], NDArray[np.uint8]]
"""A picture (H, W, 3), its boxes as (class, left, top, right, bottom), and a map of class + 1, 0 for no object."""


def scene(generator: np.random.Generator, size: tuple[int, int], classes: Sequence[int], most: int = 4) -> Scene:
    """Return a picture of (width, height) with up to ``most`` objects of some 10 to 40 pixels, well apart."""
    width, height = size
    coarse = Image.fromarray(generator.integers(30, 226, (5, 6, 3)).astype(np.uint8))
    picture = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC), np.float64)
    picture = (picture - 128) * 0.5 + 128 + generator.normal(0, 6, (height, width, 3))
    classes_at, found = np.zeros((height, width), np.uint8), list[tuple[float, ...]]()
    rows, columns = np.mgrid[:height, :width] + 0.5
    for _ in range(int(generator.integers(1, most + 1))):
        sides = generator.uniform(0.14, 0.45, 2) * min(*size, 96)
        left, top = generator.uniform(0, np.array(size) - sides)
        box = (left, top, left + sides[0], top + sides[1])
        if any(_overlap(box, other[1:]) > 0.1 for other in found):
            continue
        label = int(generator.choice(list(classes)))
        across, down = (columns - left) / sides[0] * 2 - 1, (rows - top) / sides[1] * 2 - 1
        power = 2 if generator.random() < 0.5 else 20  # an ellipse, or nearly a rectangle
        inside = np.abs(across) ** power + np.abs(down) ** power < 1
        shade = np.array(COLOURS[NAMES[label]]) * generator.uniform(0.6, 1.1)
        picture[inside] = generator.normal(shade, 10, (int(inside.sum()), 3))
        classes_at[inside] = label + 1
        found.append((label, *box))
    return picture.clip(0, 255).astype(np.uint8), np.array(found).reshape(-1, 5), classes_at


def _overlap(one: Sequence[float], other: Sequence[float]) -> float:
    shared = max(0.0, min(one[2], other[2]) - max(one[0], other[0]))
    shared *= max(0.0, min(one[3], other[3]) - max(one[1], other[1]))
    return shared / min((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))


def _block(inputs: int, outputs: int, stride: int = 2) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


def _trunk() -> nn.Sequential:
    """Return features of stride 8; the first convolution has a bias, which takes in the preparation."""
    first = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    return nn.Sequential(first, _block(16, 32), _block(32, 48), _block(48, 48, 1))


class Detector(nn.Module):
    """Maps of strides 8 and 16 with the distances to four sides, class logits and :data:`EXTRA` channels."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.deep = _trunk(), nn.Sequential(_block(48, 64), _block(64, 64, 1))
        self.heads = nn.ModuleList(nn.Conv2d(width, 4 + len(NAMES) + EXTRA, 1) for width in (48, 64))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return corners (N, A, 4) in pixels, class logits (N, A, C) and the further channels."""
        near = self.trunk(images)
        parts = []
        for head, features, stride in zip(self.heads, (near, self.deep(near)), (8, 16), strict=True):
            values = head(features)
            height, width = (int(side) for side in features.shape[2:])
            rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
            centres = ((torch.stack([columns, rows], dim=-1) + 0.5) * stride).reshape(-1, 2).float()
            flat = values.flatten(2).transpose(1, 2)
            sides = F.softplus(flat[..., :4]) * stride
            boxes = torch.cat([centres - sides[..., :2], centres + sides[..., 2:]], dim=-1)
            parts.append((boxes, flat[..., 4:-EXTRA], flat[..., -EXTRA:]))
        boxes, logits, further = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
        return boxes, logits, further

    def with_classes(self, live: Sequence[int | None]) -> Detector:
        """Return a detector whose class at each place is the trained one of this number, or one never found."""
        other = copy.deepcopy(self)
        for head in other.heads:
            weight, bias, end = head.weight.data, head.bias.data, 4 + len(NAMES)
            dead = (weight[4] * 0, bias[4] * 0 - 7)
            chosen = [dead if number is None else (weight[4 + number], bias[4 + number]) for number in live]
            head.weight = nn.Parameter(torch.cat([weight[:4], torch.stack([row for row, _ in chosen]), weight[end:]]))
            head.bias = nn.Parameter(torch.cat([bias[:4], torch.stack([one for _, one in chosen]), bias[end:]]))
        return other


class Segmenter(nn.Module):
    """Logits of ``classes`` at each pixel."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.trunk, self.classify = _trunk(), nn.Conv2d(48 + 16, classes, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        """Return (N, C, H, W)."""
        early = self.trunk[0](images)
        late = self.trunk[1:](early)
        joined = torch.cat([early, F.interpolate(late, scale_factor=4.0, mode="bilinear")], dim=1)
        return F.interpolate(self.classify(joined), scale_factor=2.0, mode="bilinear")


class Classifier(nn.Module):
    """Logits of a picture, (N, C)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.trunk, self.classify = _trunk(), nn.Conv2d(48, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return the highest logit of each class over all places."""
        return self.classify(self.trunk(images)).amax((2, 3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """How pictures become the input: value · ``scale`` of 0 to 1, mean, std, order of channels, and fit."""

    scale: float = 1.0
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    bgr: bool = False
    letterbox: bool = False

    def images(self, pictures: Sequence[NDArray[np.uint8]], side: int) -> Tensor:
        """Return pictures as (N, 3, side, side)."""
        return torch.stack([self._image(picture, side) for picture in pictures])

    def _image(self, picture: NDArray[np.uint8], side: int) -> Tensor:
        (height, width), canvas = picture.shape[:2], np.full((side, side, 3), 114, np.uint8)
        new = placed((width, height), side, self.letterbox)
        resized = Image.fromarray(picture).resize((new[2], new[3]), Image.Resampling.BILINEAR)
        canvas[new[1] : new[1] + new[3], new[0] : new[0] + new[2]] = np.asarray(resized)
        pixels = torch.from_numpy(canvas[..., ::-1].copy() if self.bgr else canvas).permute(2, 0, 1).float() / 255
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.mean, self.std))
        return (pixels * self.scale - mean) / std

    def taken_in(self, network: nn.Module) -> nn.Module:
        """Return a copy of ``network``, trained on values of (share - .5) / .25, that takes images so prepared."""
        network = copy.deepcopy(network).eval()
        first = network.trunk[0][0]
        weight = first.weight.data[:, [2, 1, 0]] if self.bgr else first.weight.data
        mean, std = torch.tensor(self.mean), torch.tensor(self.std)
        shift = ((mean / self.scale - 0.5) / 0.25)[None, :, None, None]
        first.bias.data += (weight * shift).sum((1, 2, 3))
        first.weight.data = weight * (std / self.scale / 0.25)[None, :, None, None]
        return network


TRAINED = Preparation(mean=(0.5,) * 3, std=(0.25,) * 3)
IMAGENET = Preparation(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def placed(size: tuple[int, int], side: int, letterbox: bool) -> tuple[int, int, int, int]:
    """Return left, top, width and height of a picture of ``size`` in the square."""
    if not letterbox:
        return 0, 0, side, side
    ratio = side / max(size)
    width, height = (round(each * ratio) for each in size)
    return (side - width) // 2, (side - height) // 2, width, height


def _targets(boxes: NDArray[np.float64], side: int) -> tuple[Tensor, Tensor]:
    """Return the class + 1 at each anchor, 0 where nothing is to be found, and the box there."""
    centres = [(np.mgrid[: side // stride, : side // stride][::-1] + 0.5) * stride for stride in (8, 16)]
    at = np.concatenate([each.reshape(2, -1).T for each in centres])
    strides = np.concatenate([np.full((side // stride) ** 2, stride) for stride in (8, 16)])
    labels, wanted = np.zeros(len(at), np.int64), np.zeros((len(at), 4), np.float32)
    for label, *box in boxes:
        middle, far = (np.array(box[:2]) + box[2:]) / 2, np.hypot(box[2] - box[0], box[3] - box[1]) > 0.4 * 96
        near = (np.abs(at - middle) <= 0.75 * strides[:, None]).all(1) & (strides == (16 if far else 8))
        labels[near], wanted[near] = label + 1, box
    return torch.from_numpy(labels), torch.from_numpy(wanted)


def _batches(side: int, steps: int, count: int, seed: int, most: int) -> Iterator[list[Scene]]:
    generator = np.random.default_rng(_SEEDS[seed])
    pool = [scene(generator, (side, side), range(len(NAMES)), most) for _ in range(32 * count)]
    for _ in range(steps):
        yield [pool[index] for index in generator.integers(0, len(pool), 32)]


def _detector_loss(network: nn.Module, images: Tensor, scenes: list[Scene]) -> Tensor:
    labels, wanted = (torch.stack(each) for each in zip(*(_targets(one[1], 96) for one in scenes), strict=True))
    boxes, logits, further = network(images)
    truth = F.one_hot(labels, len(NAMES) + 1)[..., 1:].float()
    guessed = torch.cat([further[..., :1], logits], dim=-1)
    truth = torch.cat([(labels > 0).float()[..., None], truth], dim=-1)
    chance = torch.sigmoid(guessed)
    weight = torch.where(truth > 0, 1 - chance, chance) ** 2
    loss = (weight * F.binary_cross_entropy_with_logits(guessed, truth, reduction="none")).sum()
    found = labels > 0
    one, other = boxes[found], wanted[found]
    shared = (torch.minimum(one, other)[:, 2:] - torch.maximum(one, other)[:, :2]).clamp_min(0).prod(1)
    around = (torch.maximum(one, other)[:, 2:] - torch.minimum(one, other)[:, :2]).prod(1)
    union = sum((each[:, 2:] - each[:, :2]).prod(1) for each in (one, other)) - shared
    apart = 1 - shared / union + (around - union) / around
    return (loss + 2 * apart.sum()) / found.sum().clamp_min(1)


def _segmenter_loss(network: nn.Module, images: Tensor, scenes: list[Scene]) -> Tensor:
    return F.cross_entropy(network(images), torch.stack([torch.from_numpy(one[2]).long() for one in scenes]))


def _classifier_loss(network: nn.Module, images: Tensor, scenes: list[Scene]) -> Tensor:
    there = torch.stack([F.one_hot(torch.from_numpy(one[1][:, 0]).long(), len(NAMES)).amax(0) for one in scenes])
    return F.binary_cross_entropy_with_logits(network(images), there.float())


_KINDS = {
    "detection": (Detector, _detector_loss, 96, 500),
    "segmentation": (lambda: Segmenter(len(NAMES) + 1), _segmenter_loss, 64, 200),
    "classification": (lambda: Classifier(len(NAMES)), _classifier_loss, 64, 200),
}


def trained(task: str, folder: Path) -> nn.Module:
    """Return the network of a task for images of :data:`TRAINED`, from ``folder`` where it was trained before."""
    build, loss_of, side, steps = _KINDS[task]
    torch.manual_seed(0)
    network, path = build(), folder / f"{task}.pt"
    if path.exists():
        network.load_state_dict(torch.load(path, weights_only=True))
        return network.eval()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
    for scenes in _batches(side, steps, 24, list(_KINDS).index(task), 4):
        loss = loss_of(network, TRAINED.images([one[0] for one in scenes], side), scenes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(network.state_dict(), path)
    return network.eval()
