"""Torch-Pruning reads its own target file by the lines that come with it."""

import torch
from torch import nn

from senseapp.formats.registry import FORMATS
from senseapp.records.schedule import Schedule, ScheduleEntry
from tests.schedule_cases import profile_of


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 20, 3, padding=1)
        self.fc = nn.Linear(20, 10)

    def forward(self, x):
        return self.fc(self.conv2(self.conv1(x).relu()).relu().mean((2, 3)))


def entry(layer, level):
    return ScheduleEntry(layer=layer, members=(layer,), compression="pruning", level=level)


def test_it_removes_the_channels_that_the_file_asks_for(tmp_path):
    schedule = Schedule(model="toy", method="manual", entries=(entry("conv1", 0.25), entry("conv2", 0.5)))
    target = FORMATS["torch-pruning"]
    path = tmp_path / "ratios.json"
    path.write_text(target.write(schedule, profile_of({"conv1": 432, "conv2": 2880, "fc": 200})))

    model, images = Chain().eval(), torch.zeros(1, 3, 8, 8)
    ignored = "ignored_layers=[model.fc],\n    num_heads"
    exec(target.lines(schedule, str(path)).replace("num_heads", ignored), {"model": model, "images": images})
    assert (model.conv1.out_channels, model.conv2.in_channels, model.conv2.out_channels) == (12, 12, 10)
    assert model.fc.in_features == 10
    assert model(torch.zeros(1, 3, 8, 8)).shape == (1, 10)
