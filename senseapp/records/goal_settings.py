"""The settings that follow from the goal of a run and the task of its network."""

from __future__ import annotations

from dataclasses import replace

from senseapp.descriptions import CompressionDescription, all_descriptions
from senseapp.metrics import divergence_among
from senseapp.records.goal import Goal, makes_files
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.tasks import Task, task_named


def settings_for(goal: Goal, task: Task) -> SensitivitySpec:
    """Return compression, levels and metric for ``goal`` and a network of ``task``.

    - ``smaller``: fewer bits, since zeros save no bytes in a file that a runtime runs.
    - ``faster``: the bits in which a runtime computes, of weights and inputs.
    - ``targets``: zeros, ranked by the smooth metric of the task: training makes up for single answers.
    - ``look``: zeros, ranked by the answers.
    """
    compression = _compression_for(goal)
    if goal == "faster":
        return SensitivitySpec(compression=compression.config(**compression.when_run), levels=compression.run_levels)
    metric = divergence_among([each.name for each in task.own_metrics]) if goal == "targets" else None
    levels = tuple(sorted(compression.scale.default))
    return SensitivitySpec(compression=compression.config(), levels=levels, metric=metric)


def usual_run(goal: Goal = "smaller", task: str = "") -> RunSpec:
    """Return the run of the first demo with the settings for ``goal`` and the task of that name, if any."""
    return RunSpec(sensitivity=settings_for(goal, task_named(task or RunSpec().model.task)), goal=goal)


def with_goal(spec: RunSpec, goal: Goal) -> RunSpec:
    """Return ``spec`` for another goal: with its compression, levels and metric."""
    if goal == spec.goal:
        return spec
    chosen = settings_for(goal, task_named(spec.model.task))
    return replace(spec, goal=goal, sensitivity=with_chosen(spec.sensitivity, chosen))


def with_chosen(held: SensitivitySpec, chosen: SensitivitySpec) -> SensitivitySpec:
    """Return ``held`` with what a goal chooses: compression, levels and metric of ``chosen``."""
    return replace(held, compression=chosen.compression, levels=chosen.levels, metric=chosen.metric)


def _compression_for(goal: Goal) -> CompressionDescription:
    found = all_descriptions()
    if not makes_files(goal):
        return found[0]
    return next(each for each in found if each.sets_bits and each.pays_when_run)
