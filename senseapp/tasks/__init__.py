"""What a model's output means: every task is one object, and all that depends on the meaning is asked of it.

A new task is one file with a :class:`Task`, and its line in :data:`TASKS`. Its metrics name it (``Metric.task``).
"""

from __future__ import annotations

from senseapp.errors import InvalidSpec
from senseapp.tasks.base import (
    LabelMapProposal,
    Layout,
    ScanDirections,
    Targets,
    Task,
    WrittenLabels,
    refuse_output,
)
from senseapp.tasks.classification import CLASSIFICATION

TASKS: dict[str, Task] = {task.name: task for task in (CLASSIFICATION,)}


def task_named(name: str) -> Task:
    """Return the task of that name.

    Raises:
        InvalidSpec: there is none.
    """
    if name not in TASKS:
        raise InvalidSpec(f"The task must be one of {', '.join(TASKS)}, got {name!r}.")
    return TASKS[name]


__all__ = [
    "CLASSIFICATION",
    "TASKS",
    "LabelMapProposal",
    "Layout",
    "ScanDirections",
    "Targets",
    "Task",
    "WrittenLabels",
    "refuse_output",
    "task_named",
]
