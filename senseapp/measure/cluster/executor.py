"""Execution of a run's passes by the workers of a Ray cluster."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray

from senseapp.core.errors import ClusterFailed
from senseapp.data.per_image import separate
from senseapp.measure.accumulation import BaselineOutputs
from senseapp.measure.cluster import remote
from senseapp.measure.cluster.cluster import Cluster, cluster_errors, look
from senseapp.measure.cluster.plan import Plan, choose_plan, costs_of
from senseapp.measure.cluster.remote import RemoteTask, ReorderBuffer, SpanImages, tasks_of
from senseapp.measure.measurer import JobResult, MeasurementJob
from senseapp.measure.sweep import Sweep
from senseapp.metrics.predictions import Predictions, joined, stored


@dataclass(slots=True)
class RayExecutor:
    """Distributes a run by a plan; a task whose worker is lost is repeated by another worker.

    ``progress`` receives one short sentence on the current work at least once a second; it may raise.
    """

    cluster: Cluster
    progress: Callable[[str], None]
    _plan: Plan | None = None
    _key: str = field(default_factory=lambda: uuid.uuid4().hex)
    _setup: Any = None
    _images: SpanImages | None = None
    _device: str = ""
    _alone_since: float | None = None

    def arrange(self, sweep: Sweep, span_images: int | None) -> int:
        """Send the model to the cluster, and choose a plan unless the run is resumed with ``span_images``."""
        self._images = SpanImages(sweep.context.images)
        with cluster_errors():
            self._send(sweep)
        if span_images is not None:
            return span_images
        # Kept outputs take at most a quarter of a worker's memory and 2 GiB: the rest is left to other jobs.
        held = min(2 * 2**30, self.cluster.memory_bytes // 4)
        most = max(1, held // sweep.bytes_per_image())
        self._plan = choose_plan(costs_of(sweep), self.cluster.workers, most_images=most)
        return self._plan.span_images

    def baseline(self, sweep: Sweep) -> Predictions:
        """Return the predictions of all images, computed span by span by free workers, and time the passes."""
        spans = sweep.chunks()
        parts: dict[int, remote.BaselinePart] = {}
        with cluster_errors():
            task = self._task(remote.baseline_task)
            running: dict[Any, int] = {}
            for number, span in enumerate(spans):
                while len(running) >= self._most_running:
                    self._collect(running, parts)
                running[task.remote(self._key, self._setup, self._put(span))] = number
            while running:
                self._collect(running, parts)
        for part in parts.values():
            self._device = part.device
            sweep.notes.extend(note for note in part.notes if note not in sweep.notes)
            if part.obstacle and not sweep.context.replay_obstacle:
                sweep.context.replay_obstacle = part.obstacle
                with cluster_errors():
                    self._send(sweep)
        sweep.context.seconds_per_image = sum(part.seconds for part in parts.values()) / len(sweep.context.images)
        self._settle_plan(sweep, spans)
        return joined([parts[number].output for number in range(len(spans))])

    def _send(self, sweep: Sweep) -> None:
        """Put the run's description into the object store, under a new key."""
        self._key = uuid.uuid4().hex
        self._setup = [ray.put(remote.setup_of(sweep))]

    def predicted_seconds(self, sweep: Sweep) -> float:
        """Return the simulated time of the plan without its baseline."""
        assert self._plan is not None
        return self._plan.seconds - self._plan.baseline_seconds

    def carry_out(self, sweep: Sweep, jobs: Iterable[MeasurementJob]) -> Iterator[JobResult]:
        """Yield results as they arrive, those of one block in the order of its spans."""
        assert self._plan is not None
        waiting, reorder = tasks_of(jobs, self._plan.blocks), ReorderBuffer()
        work = self._task(remote.block_task, num_returns="streaming")
        running: dict[Any, RemoteTask] = {}
        self.progress(f"Measuring on {self.cluster.workers} workers")
        try:
            with cluster_errors():
                while True:
                    self._hand_out(work, sweep, waiting, running, reorder)
                    if not running:
                        break
                    for stream in self._wait(running):
                        self._take(stream, running, sweep.notes)
                    yield from reorder.release()
        finally:
            for stream in running:
                with suppress(Exception):
                    ray.cancel(stream)

    def environment(self) -> dict[str, str]:
        """Return the number of workers, their device and Ray's version."""
        return {"cluster": f"Ray {ray.__version__}", "workers": str(self.cluster.workers)} | (
            {"device": self._device} if self._device else {}
        )

    @property
    def workers(self) -> int:
        """Number of workers in the cluster."""
        return self.cluster.workers

    @property
    def _most_running(self) -> int:
        return 2 * self.cluster.workers  # one running and one queued task for each, also after nodes have joined

    def _settle_plan(self, sweep: Sweep, spans: list[tuple[int, int]]) -> None:
        """Cut the layers into blocks, by the measured speed of the workers."""
        size = spans[0][1] - spans[0][0]
        num_images = size if sweep.spec.until_settled else len(sweep.context.images)  # between checks of the ranking
        costs = costs_of(sweep, num_images=num_images)
        self._plan = choose_plan(costs, self.cluster.workers, most_images=size, span_images=size)
        self.progress(f"The plan: {self._plan.sentence()}")

    def _task(self, function: Callable[..., Any], **options: Any) -> Any:
        # A task whose worker is lost is repeated three times at most.
        options |= {"num_cpus": self.cluster.cpus, "num_gpus": self.cluster.gpus, "max_retries": 3}
        return ray.remote(**options)(function)

    def _put(self, span: tuple[int, int]) -> Any:
        assert self._images is not None
        return self._images.reference(span)

    def _hand_out(
        self,
        work: Any,
        sweep: Sweep,
        waiting: Iterator[RemoteTask],
        running: dict[Any, RemoteTask],
        reorder: ReorderBuffer,
    ) -> None:
        while len(running) < self._most_running:
            task = next(waiting, None)
            if task is None:
                return
            start, stop = task.span
            targets = sweep.baseline.targets
            of_span = BaselineOutputs(
                stored(sweep.baseline.outputs[start:stop]),
                None if targets is None else separate(targets[start:stop]),
                sweep.baseline.metrics,
                recorded_images=max(0, sweep.baseline.recorded_images - start),
            )
            stream = work.remote(self._key, self._setup, self._put(task.span), ray.put(of_span), task.jobs)
            running[stream] = task
            reorder.add(task)

    def _take(self, stream: Any, running: dict[Any, RemoteTask], notes: list[str]) -> None:
        task = running[stream]
        try:
            found = ray.get(next(stream))
        except StopIteration:
            del running[stream]
            task.ended = True
            return
        if isinstance(found, JobResult):
            task.results.append(found)
        elif found not in notes:
            notes.append(found)

    def _collect(self, running: dict[Any, int], parts: dict[int, remote.BaselinePart]) -> None:
        for reference in self._wait(running):
            parts[running.pop(reference)] = ray.get(reference)

    def _wait(self, running: dict[Any, Any]) -> list[Any]:
        """Return one reference that is ready; empty after a short wait, in which case the cluster was checked."""
        ready, _ = ray.wait(list(running), num_returns=1, timeout=1.0)  # then a cancel is looked for
        if not ready:
            self._look()
        return list(ready)

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
