"""What a model's output means: every task is one object, and all that depends on the meaning is asked of it.

A new task is one file with a :class:`Task` and its metrics, and its line with :func:`register` below.
"""

from __future__ import annotations

from senseapp.core.errors import InvalidSpec
from senseapp.metrics import METRICS
from senseapp.tasks.base import (
    AnswerChanges,
    LabelMapProposal,
    LabelTruth,
    Layout,
    ScanDirections,
    Targets,
    Task,
    WrittenLabels,
    refuse_output,
)
from senseapp.tasks.classification import CLASSIFICATION
from senseapp.tasks.multilabel import MULTILABEL

TASKS: dict[str, Task] = {}


def register(task: Task) -> None:
    """Let models be of ``task``, and let what they lose be told in its metrics."""
    TASKS[task.name] = task
    METRICS.update({metric.name: metric for metric in task.extra_metrics})


register(CLASSIFICATION)
register(MULTILABEL)


def task_named(name: str) -> Task:
    """Return the task of that name; raises InvalidSpec where there is none."""
    if name not in TASKS:
        raise InvalidSpec(f"The task must be one of {', '.join(TASKS)}, got {name!r}.")
    return TASKS[name]


__all__ = [
    "CLASSIFICATION",
    "MULTILABEL",
    "TASKS",
    "AnswerChanges",
    "LabelMapProposal",
    "LabelTruth",
    "Layout",
    "ScanDirections",
    "Targets",
    "Task",
    "WrittenLabels",
    "refuse_output",
    "register",
    "task_named",
]
