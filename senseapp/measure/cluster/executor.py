"""Execution of a run's passes by the workers of a Ray cluster."""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, TypeVar

import ray

from senseapp.core.errors import ClusterFailed
from senseapp.data.images import chosen_of
from senseapp.measure.accumulation import BaselineOutputs
from senseapp.measure.cluster import remote
from senseapp.measure.cluster.cluster import Cluster, cluster_errors, look
from senseapp.measure.cluster.plan import Plan, choose_plan, costs_of
from senseapp.measure.measurer import Executor, JobResult, MeasurementJob, Span
from senseapp.measure.sweep import Sweep
from senseapp.metrics.predictions import Predictions, joined, stored

_TagT = TypeVar("_TagT")


@dataclass(slots=True)
class RayExecutor(Executor):
    """Distributes a run by a plan; a task whose worker is lost is repeated by another worker.

    ``progress`` receives one short sentence on the current work at least once a second; it may raise.
    """

    cluster: Cluster
    progress: Callable[[str], None]
    _plan: Plan | None = None
    _key: str = ""
    _setup: Any = None
    _device: str = ""
    _alone_since: float | None = None

    def arrange(self, sweep: Sweep, span_images: int | None) -> int:
        """Send the model to the cluster, and choose a plan unless the run is resumed with ``span_images``."""
        with cluster_errors():
            self._key, self._setup = uuid.uuid4().hex, [ray.put(remote.setup_of(sweep))]
        if span_images is not None:
            return span_images
        # Kept outputs take at most a quarter of a worker's memory and 2 GiB: the rest is left to other jobs.
        most = max(1, min(2 * 2**30, self.cluster.memory_bytes // 4) // sweep.bytes_per_image())
        self._plan = choose_plan(costs_of(sweep), self.cluster.workers, most_images=most)
        return self._plan.span_images

    def baseline(self, sweep: Sweep) -> Predictions:
        """Return the predictions of all images, computed span by span by free workers, and time the passes."""
        spans, parts = sweep.chunks(), dict[Span, remote.BaselinePart]()
        for span, part in self._outcomes(remote.baseline_task, ((span, (_sent(sweep, span),)) for span in spans)):
            parts[span] = part
            self._device = part.device
            sweep.note(*part.notes)
            sweep.context.replay_obstacle = sweep.context.replay_obstacle or part.obstacle
        sweep.context.seconds_per_image = sum(part.seconds for part in parts.values()) / len(sweep.context.images)
        self._settle_plan(sweep, spans)
        return joined([parts[span].output for span in spans])

    def predicted_seconds(self, sweep: Sweep) -> float:
        """Return the simulated time of the plan without its baseline."""
        assert self._plan is not None
        return self._plan.seconds - self._plan.baseline_seconds

    def carry_out(self, sweep: Sweep, jobs: Iterable[MeasurementJob]) -> Iterator[JobResult]:
        """Yield the results of tasks as they end, those of one block in the order of its spans."""
        assert self._plan is not None
        self.progress(f"Measuring on {self.cluster.workers} workers")
        yield from remote.in_order(self._measured(sweep, remote.tasks_of(jobs, self._plan.blocks)))

    def _measured(
        self, sweep: Sweep, tasks: Iterable[tuple[remote.Task, Span, tuple[MeasurementJob, ...]]]
    ) -> Iterator[tuple[remote.Task, list[JobResult]]]:
        """Yield the results of each task as it ends."""

        def calls() -> Iterator[tuple[remote.Task, tuple[Any, ...]]]:
            for span, of_span in groupby(tasks, key=lambda task: task[1]):
                images, baseline = _sent(sweep, span), ray.put(_baseline_of(sweep, span))
                for task, _, some in of_span:
                    yield task, (images, baseline, some, sweep.context.replay_obstacle)

        for task, (results, notes) in self._outcomes(remote.block_task, calls()):
            sweep.note(*notes)
            yield task, results

    def environment(self) -> dict[str, str]:
        """Return the number of workers, their device and Ray's version."""
        return {"cluster": f"Ray {ray.__version__}", "workers": str(self.cluster.workers)} | (
            {"device": self._device} if self._device else {}
        )

    @property
    def workers(self) -> int:
        """Number of workers in the cluster."""
        return self.cluster.workers

    def _settle_plan(self, sweep: Sweep, spans: list[tuple[int, int]]) -> None:
        """Cut the layers into blocks, by the measured speed of the workers."""
        size = spans[0][1] - spans[0][0]
        num_images = size if sweep.spec.until_settled else len(sweep.context.images)  # between checks of the ranking
        costs = costs_of(sweep, num_images=num_images)
        self._plan = choose_plan(costs, self.cluster.workers, most_images=size, span_images=size)
        self.progress(f"The plan: {self._plan.sentence()}")

    def _outcomes(
        self, function: Callable[..., Any], calls: Iterable[tuple[_TagT, tuple[Any, ...]]]
    ) -> Iterator[tuple[_TagT, Any]]:
        """Call ``function`` in free workers; yield each tag with its outcome as it arrives."""
        # A task whose worker is lost is repeated three times at most.
        options: dict[str, Any] = {"num_cpus": self.cluster.cpus, "num_gpus": self.cluster.gpus, "max_retries": 3}
        task, waiting, running = ray.remote(**options)(function), iter(calls), dict[Any, _TagT]()
        # One running and one queued task for each worker, also after nodes have joined.
        most = 2 * self.cluster.workers
        try:
            with cluster_errors():
                while True:
                    for tag, arguments in islice(waiting, most - len(running)):
                        running[task.remote(self._key, self._setup, *arguments)] = tag
                    if not running:
                        return
                    ready, _ = ray.wait(list(running), num_returns=1, timeout=1.0)  # then a cancel is looked for
                    if not ready:
                        self._look()
                    for reference in ready:
                        yield running.pop(reference), ray.get(reference)
        finally:
            for reference in running:
                with suppress(Exception):
                    ray.cancel(reference)

    def _look(self) -> None:
        try:
            workers = look(device="cpu" if not self.cluster.gpus else "auto").workers
        except ClusterFailed:
            now = time.monotonic()
            self._alone_since = self._alone_since or now
            if now - self._alone_since > 30.0:  # seconds without any worker
                raise
            self.progress("Waiting for workers: the cluster has none at the moment")
        else:
            self._alone_since = None
            self.progress(f"Measuring on {workers} workers")


def _sent(sweep: Sweep, span: Span) -> Any:
    """Put the images of a span into the object store, which releases them once no task needs them any more."""
    return ray.put(remote.part_of(sweep.context.images, *span))


def _baseline_of(sweep: Sweep, span: Span) -> BaselineOutputs:
    (start, stop), targets = span, sweep.baseline.targets
    return BaselineOutputs(
        stored(sweep.baseline.outputs[start:stop]),
        None if targets is None else chosen_of(targets, range(start, stop)),
        sweep.baseline.metrics,
        recorded_images=max(0, sweep.baseline.recorded_images - start),
    )
