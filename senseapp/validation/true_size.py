"""Schedules of pruning that truly meet their budget: the network tells which weights its layers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import nn

from senseapp.layers import profile_model
from senseapp.results import ResourceBudget, Schedule, SensitivityResult
from senseapp.results.coupling import CoupledGroup
from senseapp.schedule import truly_sized
from senseapp.transforms import ChannelCompressor, CompressionRequest, build_compressor

_EXAMPLE_IMAGES = 2


def couplings_of(model: nn.Module, result: SensitivityResult) -> tuple[CoupledGroup, ...]:
    """Return which layers of ``model``, the network of the pruning run ``result``, shrink together; never touches it.

    This follows an image through the network, which takes as long as the start of a run; its answer serves every
    schedule of the run.
    """
    config, seed = result.spec.sensitivity.compression, result.spec.sensitivity.seed
    if not config.description.removes_channels:
        return ()
    images = torch.randn(_EXAMPLE_IMAGES, *result.profile.input_shape, generator=torch.Generator().manual_seed(seed))
    layers = profile_model(model, images).layers
    request = CompressionRequest(model=model, layers=layers, calibration=(images,), seed=seed)
    return cast(ChannelCompressor, build_compressor(config, request)).couplings()


def schedule_of_true_size(
    make: Callable[[float], Schedule], result: SensitivityResult, model: nn.Module, budget: ResourceBudget
) -> Schedule:
    """Return the gentlest schedule found that truly meets ``budget``.

    Args:
        make: returns the schedule for a predicted fraction removed.
        result: the run that it is made from.
        model: the network of that run; never touched.
        budget: what must truly be saved.

    Returns:
        The schedule, with true figures in :attr:`~senseapp.results.Schedule.achieved`.

    Raises:
        InfeasibleBudget: no schedule tried saves enough; names the nearest target.
    """
    return truly_sized(make, result.profile, couplings_of(model, result), budget)
