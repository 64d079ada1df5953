"""What a run is for: its goal decides compression, levels, metric, files and what Results shows first."""

from dataclasses import replace

from senseapp.descriptions import all_descriptions
from senseapp.metrics import divergence_among
from senseapp.records.spec import Goal, RunSpec, SensitivitySpec
from senseapp.tasks import Task, task_named

GOALS: dict[Goal, str] = {
    "smaller": "A smaller file",
    "faster": "A faster file",
    "targets": "Targets for a training tool",
    "look": "See which layers are fragile",
}
"""Each goal in the words in which people choose it."""
GOAL_LINES: dict[Goal, str] = {
    "smaller": "Fewer bits for each weight",
    "faster": "Here, or on a device",
    "targets": "An amount for each layer",
    "look": "No file is made",
}
"""What follows from each goal, in a few words."""


def makes_files(goal: Goal) -> bool:
    """Return whether files that a runtime runs are made at the end of a run."""
    return goal in ("smaller", "faster")


def settings_for(goal: Goal, task: Task) -> SensitivitySpec:
    """Return compression, levels and metric for ``goal`` and a network of ``task``.

    - ``smaller``: fewer bits, since zeros save no bytes in a file that a runtime runs.
    - ``faster``: the bits in which a runtime computes, of weights and inputs.
    - ``targets``: zeros, ranked by the smooth metric of the task: training makes up for single answers.
    - ``look``: zeros, ranked by the answers.
    """
    known = all_descriptions()
    pays = next(each for each in known if each.sets_bits and each.pays_when_run)
    compression = pays if makes_files(goal) else known[0]
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
