"""Tasks that deliver files of a finished run: of one schedule, of the original weights, of the recommendation."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from senseapp.core.errors import SenseError
from senseapp.core.files import replace_file
from senseapp.descriptions import CompressionConfig
from senseapp.descriptions.targets import TARGETS, USUAL_TARGET
from senseapp.metrics import METRICS
from senseapp.records.candidate import Candidate, Delivery
from senseapp.records.deployment import DeploySettings
from senseapp.records.goal import makes_files
from senseapp.records.promise import Promise, kept, sequence_after
from senseapp.records.recommendation import Recommendation
from senseapp.records.schedule import Adapting, Schedule
from senseapp.server.run_tasks import Verification
from senseapp.server.tasks import EvaluatorTask, TaskContext, key_of
from senseapp.store.run_folder import RunFolder

if TYPE_CHECKING:
    from senseapp.prove.deploy import Source
    from senseapp.prove.evaluator import ScheduleEvaluator
    from senseapp.prove.prove import Promised
    from senseapp.prove.recommend import Recommended
    from senseapp.runtimes.base import Runtime

MOST_CHANGED = 0.5
"""Largest share of answers that a file in int8 may change, whatever the tolerated loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverTask(EvaluatorTask[Delivery]):
    """Files of one schedule, made from its proven weights; or, without one, of the original weights.

    Attributes:
        schedule: None for the original weights.
        repair: whether proven weights may be repaired.
        adapting: whether proven weights may be adapted.
        allowed_drop: tolerated loss, in the unit of the model's main metric. If the proven weights lose more, adapted
            ones are tried too, and the better are used. None tries nothing more.
        promise: tested on held-out images in place of ``allowed_drop``; the file in int8 is made to pass it.
        settings: of the file in int8, those unused by its kind as usual; kind ``float`` makes none.
        other: configuration of the second run's compression, for a schedule of two runs.
    """

    keeps_model: ClassVar[bool] = True

    schedule: Schedule | None = None
    repair: bool = True
    adapting: Adapting = "off"
    allowed_drop: float | None = None
    promise: Promise | None = None
    settings: DeploySettings
    other: CompressionConfig | None = None

    def proof(self, adapting: Adapting) -> Verification:
        """Return the task that proves the schedule with this adaptation."""
        assert self.schedule is not None
        return Verification(
            run_id=self.run_id, schedule=self.schedule, repair=self.repair, adapting=adapting, other=self.other
        )

    def make(self, evaluator: ScheduleEvaluator, context: TaskContext, *, others: bool = True) -> Delivery:
        """Prove the schedule, write the files, and measure them.

        With ``others`` come further files of the same search to choose from, but not under a promise, where each would
        be a further test.
        """
        from senseapp.prove.deliver import runtime_candidates  # torch loads here
        from senseapp.prove.deploy import original_source
        from senseapp.prove.recommend import check_promise, likely_to_pass

        runtime, candidates = evaluator.runtime(self.settings.runtime), tuple[Candidate, ...]()
        content_key = evaluator.original_key(runtime) if self.schedule is None else ""
        if self.promise is not None:
            check_promise(evaluator, self.promise)
        elif content_key and (known := self._made_before(context, content_key)):
            return known
        if self.schedule is None:
            source = original_source(evaluator, runtime)
        else:
            source, candidates = self._proven(evaluator, runtime, context)

        def name_of(what: str) -> str:
            return context.folder.deployed(key_of(f"{self.key} {what}"), runtime.description.suffix).name

        settings, promised = self.settings, promised_after(context.folder.candidates(), self.promise)
        if promised is not None and settings.kind == "quickest":
            most = likely_to_pass(evaluator, promised)
            settings = replace(settings, most_changed=min(settings.most_changed, most))
        found = runtime_candidates(evaluator, source, settings, name_of, others=others and promised is None)
        for candidate, deployed in found.files:
            replace_file(context.folder.path / candidate.file, deployed.content)
            if deployed.answers is not None:
                context.folder.save_answers(candidate.file, deployed.answers)
        candidates = (*candidates, *(each for each, _ in found.files))
        return Delivery(candidates=candidates, notes=found.notes, content_key=content_key)

    def _made_before(self, context: TaskContext, content_key: str) -> Delivery | None:
        """Return the same files of another run, copied into this one; None where there are none."""
        for folder in (RunFolder(run.folder) for run in context.earlier):
            with suppress(SenseError, OSError):  # deleted or damaged meanwhile
                known = self.outcome(folder)
                if known is None or known.content_key != content_key:
                    continue
                for candidate in known.candidates:
                    replace_file(context.folder.path / candidate.file, folder.candidate_file(candidate).read_bytes())
                    if (answers := folder.answers(candidate)) is not None:
                        context.folder.save_answers(candidate.file, answers)
                return known
        return None

    def _proven(
        self, evaluator: ScheduleEvaluator, runtime: Runtime, context: TaskContext
    ) -> tuple[Source, tuple[Candidate, ...]]:
        """Return the proven network and the candidates of its weights; what was proven before is read again."""
        from senseapp.prove.deploy import proven_source, stored_source
        from senseapp.prove.prove import prove_within

        folder, proof = context.folder, self.proof(self.adapting)
        key = proof.key
        known, delivery = proof.outcome(folder), folder.load(Delivery, key)
        if known is not None and delivery is not None and self._is_enough(delivery.candidates[0], folder.candidates()):
            return stored_source(evaluator, runtime, known, folder.compressed_model(key)), delivery.candidates
        assert self.schedule is not None
        proven = prove_within(
            evaluator,
            self.schedule,
            repair=self.repair,
            adapting=self.adapting,
            allowed_drop=self.allowed_drop,
            promised=promised_after(folder.candidates(), self.promise),
        )
        proof = self.proof(proven.result.adapting)
        folder.save(proof.key, proof.written(evaluator, proven, context))
        delivery = folder.load(Delivery, proof.key)
        assert delivery is not None  # just written
        return proven_source(evaluator, runtime, proven), delivery.candidates

    def _is_enough(self, weights: Candidate, known: Sequence[Candidate]) -> bool:
        """Return whether weights that were proven before need no adapting."""
        if self.allowed_drop is None:
            return True
        if self.promise is None:
            return weights.loss.delta <= self.allowed_drop
        return self.adapting != "off" or weights in kept(known, self.promise)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationTask(EvaluatorTask[Recommendation]):
    """The recommendation for a run; its proof is kept like any other.

    ``allowed_drop`` is in the unit of the model's main metric; None: the loss that this metric tolerates. A ``promise``
    takes its place.
    """

    keeps_model: ClassVar[bool] = True

    allowed_drop: float | None = None
    promise: Promise | None = None

    def proof(self, found: Recommendation) -> Verification | None:
        """Return the task whose outcome is the proof of the recommended schedule; None if there is none."""
        if found.schedule is None or found.validation is None:
            return None
        return Verification(run_id=self.run_id, schedule=found.schedule, adapting=found.validation.adapting)

    def make(self, evaluator: ScheduleEvaluator, context: TaskContext) -> Recommendation:
        """Search on the images of the run; the file of the original weights in int8 comes first."""
        return self.search(evaluator, context)[0]

    def search(self, evaluator: ScheduleEvaluator, context: TaskContext) -> tuple[Recommendation, Recommended]:
        """Return the finished record, and what was found with its model."""
        from senseapp.prove.recommend import recommend

        if makes_files(evaluator.result.spec.goal):
            self.keep_original(evaluator, context)
        tests = promised_after(context.folder.candidates(), self.promise)
        found = recommend(evaluator, allowed_drop=self.allowed_drop, promised=tests)
        return self.keep_scheduled(found, evaluator, context), found

    def keep_original(self, evaluator: ScheduleEvaluator, context: TaskContext) -> None:
        """Make and keep the file of the original weights in int8, which pays on most machines and takes seconds.

        The usual one also serves a stricter loss that it does not exceed.
        """
        usual, target = METRICS[evaluator.result.judged_by].tolerable, evaluator.result.spec.target
        allowed = usual if self.allowed_drop is None else self.allowed_drop
        known = original_in_int8(self.run_id, usual, target=target).outcome(context.folder)
        serves = known is not None and all(one.loss.delta <= allowed < usual for one in known.candidates)
        task = original_in_int8(self.run_id, allowed, self.promise, target)
        if task.outcome(context.folder) is None and not (serves and self.promise is None):
            context.folder.save(task.key, task.make(evaluator, context))

    def keep_scheduled(self, found: Recommended, evaluator: ScheduleEvaluator, context: TaskContext) -> Recommendation:
        """Keep the proof of the found schedule, and its files; return the finished record.

        A pruned schedule also gets a file in int8, where the goal is a file. On top of zeros or rounded weights, int8
        would lose more than on the original weights and be no smaller or faster, so it is made only on request.
        """
        record, proof = found.record, self.proof(found.record)
        if proof is None or found.proven is None:
            return record
        validation = proof.written(evaluator, found.proven, context)
        context.folder.save(proof.key, validation)
        record, schedule = replace(record, validation=validation), proof.schedule
        settings = _quickest(record.allowed_drop, evaluator.result.spec.target)
        in_int8 = schedule.removes_channels and makes_files(evaluator.result.spec.goal)
        task = DeliverTask(
            run_id=self.run_id,
            schedule=schedule,
            adapting=validation.adapting,
            promise=self.promise,
            settings=settings if in_int8 else DeploySettings(kind="float", runtime=settings.runtime),
        )
        context.folder.save(task.key, task.make(evaluator, context))
        return record


def original_in_int8(
    run_id: str, allowed_drop: float, promise: Promise | None = None, target: str = USUAL_TARGET
) -> DeliverTask:
    """Return the task for a target's file of the original weights in int8 with a tolerated or promised loss."""
    most = allowed_drop if promise is None else promise.most
    return DeliverTask(run_id=run_id, settings=_quickest(most, target), promise=promise)


def promised_after(candidates: Sequence[Candidate], promise: Promise | None) -> Promised | None:
    """Return a promise, if there is one, with the tests that ``candidates`` were: further schedules add theirs."""
    from senseapp.prove.prove import Promised  # torch loads here

    return None if promise is None else Promised(promise=promise, tests=sequence_after(candidates, promise))


def _quickest(allowed_drop: float, target: str) -> DeploySettings:
    runtime = TARGETS[target].runtime_name
    return DeploySettings(kind="quickest", most_changed=min(allowed_drop, MOST_CHANGED), runtime=runtime)
