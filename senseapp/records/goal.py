"""What a run is for: its goal decides compression, levels, metric, files and what Results shows first."""

from __future__ import annotations

from typing import Literal, get_args

from senseapp.core.errors import InvalidSpec

Goal = Literal["smaller", "faster", "targets", "look"]
"""Fewer bytes, less time, a schedule for a training tool, or only the sensitivities of the layers."""

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


def check_goal(goal: str) -> None:
    """Check that ``goal`` is one.

    Raises:
        InvalidSpec: it is not.
    """
    if goal not in get_args(Goal):
        raise InvalidSpec(f"The goal must be one of {', '.join(get_args(Goal))}, got {goal!r}.")


def makes_files(goal: Goal) -> bool:
    """Return whether files that a runtime runs are made at the end of a run."""
    return goal in ("smaller", "faster")
