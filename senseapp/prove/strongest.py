"""The strongest compression whose measured drop stays within what a person allows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import nn

from senseapp.compressions.base import ChannelCompressor, CompressionRequest, build_compressor
from senseapp.core.errors import InfeasibleBudget, InvalidSpec
from senseapp.descriptions import BudgetKind
from senseapp.networks.profile import profile_model
from senseapp.networks.trace import EXAMPLE_IMAGES
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.repair_choice import measured_quickly
from senseapp.records.measurement import RunResult
from senseapp.records.profile import CoupledGroup
from senseapp.records.schedule import Limits, ResourceBudget, Schedule, StrongestFound, TriedTarget
from senseapp.solve.methods import make_schedule
from senseapp.solve.trade_off import trade_off, true_figures


def couplings_of(model: nn.Module, result: RunResult) -> tuple[CoupledGroup, ...]:
    """Return which layers of ``model``, the network of ``result``, shrink together; as slow as the start of a run."""
    config, seed = result.compression, result.spec.sensitivity.seed
    if not config.description.removes_channels:
        return ()
    drawn = torch.randn(EXAMPLE_IMAGES, *result.profile.input_shape, generator=torch.Generator().manual_seed(seed))
    images = drawn.to(next(model.parameters()).device)
    layers = profile_model(model, images).layers
    request = CompressionRequest(model=model, layers=layers, calibration=(images,), seed=seed)
    return cast(ChannelCompressor, build_compressor(config, request)).couplings()


def strongest_schedule(
    evaluator: ScheduleEvaluator,
    kind: BudgetKind,
    allowed_drop: float,
    *,
    metric: str = "",
    repair: bool = False,
    limits: Limits | None = None,
    rounds: int = 6,
) -> StrongestFound:
    """Return the strongest optimal schedule found whose measured drop is at most ``allowed_drop``, by bisection.

    Drops are measured on the calibration images, so that the proof images can still judge the outcome, in the unit of
    ``metric`` (a fraction for top-1, nats for loss and KL), by default the run's own. With ``repair``, schedules that
    lose more are repaired where they do better so. ``rounds`` schedules are measured between the gentlest and the
    strongest.

    Raises:
        InfeasibleBudget: even the gentlest schedule drops more; ``nearest`` is its drop.
        InvalidSpec: the metric cannot be measured here, or the budget does not fit the compression.
    """
    targets = [point.target for point in trade_off(evaluator.result, kind, limits=limits)]
    if not targets:
        raise InfeasibleBudget(f"No {kind} budget can be met with what was measured.", nearest=0.0)
    groups = couplings_of(evaluator.dense.model, evaluator.result)
    trials = Trials(evaluator, kind, metric or evaluator.result.metric, repair, groups, tolerable=allowed_drop)
    gentlest, strongest, best = targets[0], targets[-1], None
    for number in range(rounds + 1):
        evaluator.progress(f"Measuring schedule {number + 1} of at most {rounds + 1}")
        target = 0.5 * (gentlest + strongest) if number else gentlest
        budget = ResourceBudget(kind=kind, target=target)
        schedule = make_schedule(evaluator.result, budget=budget, limits=limits)
        if (drop := trials.measure(schedule)) <= allowed_drop:
            gentlest, best = target, schedule
        else:
            strongest = target
        if best is None:
            raise InfeasibleBudget(
                f"A drop of at most {allowed_drop:g} cannot be met: the gentlest schedule already drops {drop:.4g}.",
                nearest=drop,
            )
    assert best is not None
    return StrongestFound(
        schedule=trials.sized(best), allowed_drop=allowed_drop, repaired=repair, tried=tuple(trials.tried)
    )


@dataclass(slots=True)
class Trials:
    """Schedules tried so far: what each truly saves, and what it does on the images that repairs are fitted to.

    With ``repair``, those that lose more than ``tolerable`` are repaired where they do better so.
    """

    evaluator: ScheduleEvaluator
    kind: BudgetKind
    metric: str
    repair: bool
    groups: tuple[CoupledGroup, ...]
    tolerable: float
    tried: list[TriedTarget] = field(default_factory=list)

    def measure(self, schedule: Schedule) -> float:
        """Measure a schedule, and return what it loses."""
        applied = self.evaluator.apply(schedule)
        changes, repaired = measured_quickly(
            self.evaluator, applied, self.metric, tolerable=self.tolerable, repair=self.repair
        )
        target = TriedTarget(figure=self.sized(schedule).achieved[self.kind], changes=changes, repaired=repaired)
        change = target.change(self.metric)
        if change is None:
            names = ", ".join(change.metric for change in changes)
            raise InvalidSpec(f"{self.metric} cannot be measured on these images; choose one of {names}.")
        self.tried.append(target)
        return change.delta

    def sized(self, schedule: Schedule) -> Schedule:
        """Return a schedule of pruning with true figures, and as budget what it truly saves; others as they are."""
        if not self.groups:
            return schedule
        figures = true_figures(schedule, self.evaluator.result.profile, self.groups)
        budget = ResourceBudget(kind=self.kind, target=figures[self.kind])
        return replace(schedule, budget=budget, achieved=schedule.achieved | dict(figures))
