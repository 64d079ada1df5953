"""Building without drawing weights, and with weights from a fixed seed."""

from __future__ import annotations

import torch
from torch import nn

from senseapp.networks.loaded import seeded_weights, skip_weight_init


def test_unset_weights_draw_nothing_but_compute_the_rest():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    with skip_weight_init():
        layer = nn.Linear(50, 50)
        nn.init.normal_(layer.weight)
        nn.init.xavier_normal_(layer.weight)
        nn.init.kaiming_uniform_(layer.weight)
        ordinary = torch.ones(3).mul_(2)
        norm = nn.BatchNorm2d(4)
    assert torch.equal(torch.get_rng_state(), state)
    assert ordinary.tolist() == [2, 2, 2]
    assert norm.running_var.tolist() == [1, 1, 1, 1]
    assert norm.weight.tolist() == [1, 1, 1, 1]


def test_seeded_weights_do_not_disturb_the_callers_generator():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with seeded_weights():
        first = nn.Linear(3, 3).weight
    with seeded_weights():
        second = nn.Linear(3, 3).weight
    assert torch.equal(first, second)
    assert torch.equal(torch.rand(2), expected)
