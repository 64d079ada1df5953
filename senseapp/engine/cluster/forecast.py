"""What a run would cost and how it would be shared out, before it starts: a few images are enough to tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from senseapp.data.pictures import survey_images
from senseapp.engine.cluster.plan import Plan, RunCosts, choose_plan, costs_of
from senseapp.engine.plan import num_held_out
from senseapp.engine.session import Session
from senseapp.records.spec import RunSpec
from senseapp.tasks import task_named

_TIMED_IMAGES = 32
_HELD_BYTES = 2 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The costs of a run, timed here on a few of its images, and how many images a worker has memory for at once."""

    costs: RunCosts
    most_images: int

    def plans(self, workers: Iterable[int]) -> list[Plan]:
        """Return the best plan for each number of workers."""
        return [choose_plan(self.costs, count, most_images=self.most_images) for count in workers]


def forecast(spec: RunSpec, *, progress: Callable[[str], None]) -> Forecast:
    """Load the model and a few images, time some passes, and count the rest.

    Raises:
        SenseError: as for the run itself.
    """
    asked = spec.sensitivity.num_samples
    listed = spec.data.kind in ("folder", "archive")
    few = asked if asked is not None and asked <= _TIMED_IMAGES else _TIMED_IMAGES if asked or listed else None
    settings = replace(spec.sensitivity, num_samples=few, mode="exact", until_settled=False)
    session = Session.open(replace(spec, sensitivity=settings), progress=progress)
    count = asked or (_listed(spec, session) if listed else len(session.images))
    costs = costs_of(session.sweep, num_images=count)
    most_images = max(1, _HELD_BYTES // session.sweep.bytes_per_image())
    session.close()
    return Forecast(costs=costs, most_images=most_images)


def _listed(spec: RunSpec, session: Session) -> int:
    model = session.model
    task = task_named(spec.model.task)
    survey = survey_images(spec.data, num_classes=model.num_classes, task=task, class_names=model.class_names)
    return survey.num_images - num_held_out(survey.num_images)
