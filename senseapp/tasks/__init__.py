"""Tasks: every task is one object, which defines the meaning of a model's output.

A new task is one file with a :class:`Task` and its metrics, and its line in :data:`TASKS` or an entry point of that
group.
"""

from senseapp.core.registry import Registry
from senseapp.metrics import METRICS
from senseapp.tasks.base import Task
from senseapp.tasks.classification import CLASSIFICATION
from senseapp.tasks.multilabel import MULTILABEL
from senseapp.tasks.segmentation import SEGMENTATION

__all__ = ["CLASSIFICATION", "MULTILABEL", "SEGMENTATION", "TASKS", "Task", "task_named"]


TASKS: Registry[Task] = Registry(
    "task",
    group="senseapp.tasks",
    own=(
        "senseapp.tasks.classification:CLASSIFICATION",
        "senseapp.tasks.multilabel:MULTILABEL",
        "senseapp.tasks.segmentation:SEGMENTATION",
        "senseapp.tasks.detection:DETECTION",
        "senseapp.tasks.values:VALUES",
    ),
    added=lambda task: METRICS.update({metric.name: metric for metric in task.extra_metrics}),
)
"""All tasks; each brings the metrics that tell what its models lose."""


def task_named(name: str) -> Task:
    """Return the task of that name; raises InvalidSpec where there is none."""
    return TASKS.named(name)
