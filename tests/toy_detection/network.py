"""A small detector: it returns a dictionary of boxes and logits for each image, and where it comes from."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from senseapp.core.errors import UnknownModel
from senseapp.networks.loaded import LoadedModel, Preprocessing
from senseapp.records.spec import ModelSpec
from tests.toy_segmentation.network import SIDE, scene

NUM_CLASSES, CELLS = 2, 16
_SCENES, _STEPS = 300, 120


class Detector(nn.Module):
    """One box and two logits for each of 4 x 4 cells, (N, 3, 32, 32) to a list of N dictionaries."""

    def __init__(self, *, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.body = nn.Sequential(
                nn.Conv2d(3, 16, 3, stride=2, padding=1),
                nn.ReLU(),
                nn.Conv2d(16, 32, 3, stride=2, padding=1),
                nn.BatchNorm2d(32),
                nn.ReLU(),
                nn.Conv2d(32, 64, 3, stride=2, padding=1),
                nn.ReLU(),
            )
            self.head = nn.Conv2d(64, 4 + NUM_CLASSES, 3, padding=1)

    def forward(self, images: Tensor) -> list[dict[str, Tensor]]:
        """Return boxes, (16, 4) as shares of the side, left, top, right, bottom, and logits, (16, 2)."""
        cells = self.head(self.body(images)).flatten(2).transpose(1, 2)  # (N, 16, 6)
        return [{"boxes": each[:, :4], "logits": each[:, 4:]} for each in cells]


def rectangles(mask: Tensor) -> Tensor:
    """Return the class and the box of each rectangle in a mask, (n, 5), boxes as shares of the side."""
    found = []
    for kind in (1, 2):
        rows, columns = (mask == kind).nonzero(as_tuple=True)
        if len(rows):
            ends = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
            found.append([kind - 1, *(float(end) / SIDE for end in ends)])
    return torch.tensor(found).reshape(-1, 5)


@functools.cache
def trained_state(seed: int) -> dict[str, Tensor]:
    """Return the weights of a detector after a few hundred steps on scenes."""
    network = Detector(seed=seed)
    pictures, masks = zip(*(scene(1000 + number) for number in range(_SCENES)), strict=True)
    images = (torch.stack(pictures).permute(0, 3, 1, 2) / 255 - 0.5) / 0.5
    wanted = torch.stack([_wanted(mask) for mask in masks])  # (N, 16, 6)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(_STEPS):
        chosen = torch.randint(0, _SCENES, (32,), generator=generator)
        found = torch.stack([torch.cat([each["boxes"], each["logits"]], 1) for each in network(images[chosen])])
        goal = wanted[chosen]
        inside = goal[..., 4:].amax(2, keepdim=True)
        missed = ((found - goal)[..., :4].abs() * inside).sum() / inside.sum() / 4
        loss = nn.functional.binary_cross_entropy_with_logits(found[..., 4:], goal[..., 4:]) + 5 * missed
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.state_dict()


def detection_network(*, seed: int = 0) -> Detector:
    """Return a detector of rectangles."""
    network = Detector(seed=seed).eval()
    network.load_state_dict(trained_state(seed))
    return network


def _wanted(mask: Tensor) -> Tensor:
    """Return what each cell should answer: the box nearest to its middle, and the class where that is inside."""
    boxes = rectangles(mask)
    middles = (torch.arange(4) + 0.5) / 4
    across, down = middles.repeat(4), middles.repeat_interleave(4)
    distance = (across[:, None] - boxes[:, [1, 3]].mean(1)).abs() + (down[:, None] - boxes[:, [2, 4]].mean(1)).abs()
    nearest = boxes[distance.argmin(1)]  # (16, 5)
    inside = (across >= nearest[:, 1]) & (across < nearest[:, 3]) & (down >= nearest[:, 2]) & (down < nearest[:, 4])
    answers = torch.zeros(CELLS, NUM_CLASSES)
    answers[inside, nearest[inside, 0].long()] = 1.0
    return torch.cat([nearest[:, 1:], answers], 1)


def load(spec: ModelSpec, report: Callable[[str], None]) -> LoadedModel:
    """Return it as a source of networks does."""
    if spec.name != "rectangles":
        raise UnknownModel(f"There is no network called {spec.name!r}.")
    report("Making a network")
    return LoadedModel(
        module=detection_network().requires_grad_(False),
        title=spec.title,
        preprocessing=Preprocessing(input_shape=(3, SIDE, SIDE), mean=(0.5,) * 3, std=(0.5,) * 3),
        num_classes=NUM_CLASSES,
        pretrained=False,
        class_names=("red", "blue"),
    )
