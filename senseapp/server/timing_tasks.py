"""Tasks that time the network of a finished run on this machine: its layers, and all of it in int8."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from senseapp.descriptions.runtimes import usual_runtime
from senseapp.records.deployment import LayerTimes
from senseapp.records.int8_timing import Int8Timing
from senseapp.server.tasks import FinishedRunTask, TaskContext, open_evaluator

if TYPE_CHECKING:
    from senseapp.prove.evaluator import ScheduleEvaluator


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingTask(FinishedRunTask[LayerTimes]):
    """Times of the layers of a run's network on this machine at the levels of its compression."""

    kind: ClassVar[type] = LayerTimes

    threads: int = 1
    batch: int = 1
    runtime: str = field(default_factory=usual_runtime)

    def find_out(self, context: TaskContext) -> LayerTimes:
        """Write the network and time its layers."""
        from senseapp.prove.timed import open_timed  # torch loads here

        evaluator = open_evaluator(context)
        with open_timed(evaluator, evaluator.runtime(self.runtime), threads=self.threads, batch=self.batch) as network:
            return network.times


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Trial(FinishedRunTask[Int8Timing]):
    """Time of a run's network all in int8 on this machine, beside float, before a file is searched for."""

    kind: ClassVar[type] = Int8Timing

    threads: int = 1
    batch: int = 1
    runtime: str = field(default_factory=usual_runtime)

    def find_out(self, context: TaskContext) -> Int8Timing:
        """Write the network in float and in int8, and run both in turns."""
        return self.tried(open_evaluator(context))

    def tried(self, evaluator: ScheduleEvaluator) -> Int8Timing:
        """Do the same with an open evaluator."""
        from senseapp.prove.int8_timing import time_int8  # torch loads here

        runtime = evaluator.runtime(self.runtime)
        network, few = evaluator.original_file(runtime), evaluator.reconstruction.calibration()[:1]
        evaluator.progress("Timing the network in float and in int8")
        return time_int8(runtime, network, few, threads=self.threads, batch=self.batch)
