"""Measuring targets on spans of images, in this process; every machine of a run does it by this code."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby

import torch
from torch import Tensor

from senseapp.compressions.base import Applied, Compressor, Prepared, WeightCompressor
from senseapp.core.errors import MeasurementFailed, first_line_of
from senseapp.engine.accumulation import BaselineOutputs
from senseapp.engine.context import MeasurementContext
from senseapp.engine.level_batching import LevelBatch
from senseapp.engine.plan import PlannedTarget
from senseapp.engine.prefix import Prefix, calls_to_record
from senseapp.engine.replay import Replay, ReplayMismatch

Span = tuple[int, int]
Kept = Sequence[Prefix]
_NOTHING_APPLIED = Applied(achieved_level=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One measurement to make.

    Attributes:
        index: of the target among those planned.
        level: to compress it to.
        span: images, from the first to before the last.
    """

    index: int
    level: float
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of an order.

    Attributes:
        order: what was asked for.
        seconds: that it took.
        moments: sums over the span by metric; empty if it failed.
        applied: what the compression did.
        reason: one sentence if it failed.
    """

    order: Order
    seconds: float
    moments: dict[str, tuple[float, ...]] = field(default_factory=dict)
    applied: Applied = _NOTHING_APPLIED
    reason: str = ""


@dataclass(slots=True)
class Probe:
    """A model with one compression, and the images at hand.

    Attributes:
        bench: the private model and the images.
        compressor: the compression, bound to the private model.
        planned: its targets by position.
        notes: sentences on anything unusual, added to on the way.
    """

    bench: MeasurementContext
    compressor: Compressor
    planned: Sequence[PlannedTarget]
    notes: list[str]
    _together: LevelBatch | None = None
    _recorded: dict[Span, Kept] = field(default_factory=dict)

    def baseline(self, *, record_bytes: int = 0) -> Tensor:
        """Return the uncompressed model's output for all images, float32 (N, ...), and time the passes.

        Args:
            record_bytes: how much of the passes may be kept for measurements over all images at once.

        Raises:
            MeasurementFailed: the memory is too small for a single image.
        """
        usual = self.bench.layout
        while True:
            try:
                lacking = self.bench.layout != usual
                output = self._baseline(0 if lacking else record_bytes)
            except Exception as error:
                if not _lacks_memory(error):
                    raise
                if self.bench.layout.micro_batch == 1:
                    raise MeasurementFailed(
                        f"{self.bench.device} has not enough memory for one image. Choose smaller images, or the cpu."
                    ) from error
                self._halve_passes()
            else:
                if self.bench.layout != usual:
                    self._note_smaller_passes(usual.micro_batch)
                return output

    def _baseline(self, record_bytes: int) -> Tensor:
        bench = self.bench
        if record_bytes and not bench.unsafe:
            positions = [item.position for item in self.planned]
            num_images = len(bench.images)
            calls = calls_to_record(bench.trace, positions, num_images=num_images, budget_bytes=record_bytes)
            with suppress(ReplayMismatch):  # the first measurement will say so
                output, self._recorded[0, num_images] = bench.recorded_baseline(calls)
                return output
        return bench.baseline()

    def measure(self, orders: Iterable[Order], yardstick: BaselineOutputs) -> Iterator[Outcome]:
        """Yield the outcome of each order. Those of one span must come together, by ascending position.

        An order is looked at once the outcome before it has been taken, so that ``orders`` may depend on it; where
        levels of one target go together, once those before them have.
        """
        for span, of_span in groupby(orders, key=lambda order: order.span):
            prefixes = self._recorded.pop(span, None) or self.bench.prefixes(*span)
            for group in self._grouped(of_span):
                started = time.perf_counter()
                outcomes, prefixes = self._measure_group(group, prefixes, yardstick)
                seconds = (time.perf_counter() - started) / len(group)
                yield from (replace(outcome, seconds=seconds) for outcome in outcomes)

    def _grouped(self, orders: Iterable[Order]) -> Iterator[list[Order]]:
        """Yield consecutive orders of one target, as many as go together; a full group waits for no further order."""
        group: list[Order] = []
        for order in orders:
            if group and order.index != group[0].index:
                yield group
                group = []
            group.append(order)
            if len(group) >= self.bench.layout.levels_together:
                yield group
                group = []
        if group:
            yield group

    def _measure_group(
        self, group: list[Order], prefixes: Kept, yardstick: BaselineOutputs
    ) -> tuple[list[Outcome], Kept]:
        found, outcomes = self._measure_together(group, prefixes, yardstick), []
        for order in group:
            outcome = found.get(order)
            if outcome is None:
                outcome, prefixes = self._measure(order, prefixes, yardstick)
            outcomes.append(outcome)
        return outcomes, prefixes

    def _measure_together(self, group: list[Order], prefixes: Kept, yardstick: BaselineOutputs) -> dict[Order, Outcome]:
        """Return what several levels in one pass could tell; where memory lacks, fewer of them go into each pass.

        A pass that fails leaves ``prefixes`` good: what it wrote into were copies.
        """
        found: dict[Order, Outcome] = {}
        usual, start, lacked = self.bench.layout.levels_together, 0, False
        while start < len(group) and self.bench.layout.levels_together > 1:
            part = group[start : start + self.bench.layout.levels_together]
            try:
                found |= self._attempt_together(part, prefixes, yardstick)
                start += len(part)
            except Exception as error:  # whatever the model raises, level by level it is measured as ever
                if not _lacks_memory(error):
                    self._part_levels(
                        f"several in one pass fail ({type(error).__name__}: {first_line_of(error, most=300)})"
                    )
                    return found
                self.bench.layout = replace(self.bench.layout, levels_together=max(1, len(part) // 2))
                lacked = True
        if lacked:
            self.notes.append(
                f"The memory of {self.bench.device} was too small for {usual} levels of a layer in one pass; "
                f"{self.bench.layout.levels_together} were taken from there on."
            )
        return found

    def _attempt_together(
        self, orders: list[Order], prefixes: Kept, yardstick: BaselineOutputs
    ) -> dict[Order, Outcome]:
        """Return the outcomes of one pass over several levels; what is missing must be measured alone."""
        together, target = self._levels_together(orders), self.planned[orders[0].index].target
        if together is None or together.obstacle(target):
            return {}
        self._advance(Replay(self.bench.model, self.bench.trace), prefixes, self.planned[orders[0].index].position)
        if self.bench.unsafe:
            return {}
        prepared: dict[Order, Prepared] = {}
        for order in orders:
            with suppress(MeasurementFailed):  # alone, it will say why
                prepared[order] = together.compressor.prepare(target, order.level)
        if len(prepared) < 2:
            return {}
        outputs = together.outputs(prefixes, target, list(prepared.values()))
        return {
            order: Outcome(
                order=order,
                seconds=0.0,
                moments=yardstick.moments(output, *order.span),
                applied=prepared[order].applied,
            )
            for order, output in zip(prepared, outputs, strict=True)
            if output.isfinite().all()  # as in _pass
        }

    def _levels_together(self, orders: list[Order]) -> LevelBatch | None:
        """Return what runs several levels in one pass; None if the model cannot be run so, or needs it not."""
        if len(orders) < 2 or self.bench.unsafe or not isinstance(self.compressor, WeightCompressor):
            return None
        if self._together is None:
            found = LevelBatch.checked(self.bench, self.compressor, self.planned, [order.level for order in orders])
            if isinstance(found, str):
                self._part_levels(found)
                return None
            self._together = found
            self.notes.extend(found.exceptions(self.planned))
        return self._together

    def _part_levels(self, reason: str) -> None:
        self.bench.layout = replace(self.bench.layout, levels_together=1)
        self._together = None
        self.notes.append(f"Levels were measured one at a time, which takes longer: {reason}.")

    def _measure(self, order: Order, prefixes: Kept, yardstick: BaselineOutputs) -> tuple[Outcome, Kept]:
        """Return the outcome and the prefixes to go on with; where memory lacks, fewer images go into each pass."""
        usual = self.bench.layout
        while True:
            try:
                outcome = self._attempt(order, prefixes, yardstick)
            except Exception as error:  # one measurement fails, whatever the model raises; the run goes on
                outcome = Outcome(order=order, seconds=0.0, reason=_reason(error))
                if not _lacks_memory(error):
                    return outcome, prefixes
                if self.bench.layout.micro_batch == 1:  # smaller passes do not help this target, so they go back
                    self.bench.layout = usual
                    return outcome, self.bench.prefixes(*order.span)
                self._halve_passes()
                prefixes = self.bench.prefixes(*order.span)
            else:
                if self.bench.layout != usual:
                    self._note_smaller_passes(usual.micro_batch)
                return outcome, prefixes

    def _attempt(self, order: Order, prefixes: Kept, yardstick: BaselineOutputs) -> Outcome:
        item, replay = self.planned[order.index], Replay(self.bench.model, self.bench.trace)
        self._advance(replay, prefixes, item.position)
        with self.compressor.compress(item.target, order.level) as applied:
            output = self._pass(replay, prefixes, order.span)
        moments = yardstick.moments(output, *order.span)
        return Outcome(order=order, seconds=0.0, moments=moments, applied=applied)

    def _advance(self, replay: Replay, prefixes: Kept, position: int) -> None:
        if self.bench.unsafe:
            return
        try:
            self.bench.advance(replay, prefixes, position)
        except ReplayMismatch as mismatch:  # these images take another way through the model than the watched one
            self.bench.unsafe = str(mismatch)
            self.notes.append(plain_note(self.bench.unsafe))

    def _pass(self, replay: Replay, prefixes: Kept, span: Span) -> Tensor:
        if self.bench.unsafe:
            return self.bench.outputs(*span)
        try:
            output = self.bench.resume(replay, prefixes)
        except ReplayMismatch:  # the compressed model calls its modules in another order
            return self.bench.outputs(*span)
        # Kept outputs that nothing should read any more hold NaN. Code that decides by its data may have read one.
        return output if output.isfinite().all() else self.bench.outputs(*span)

    def _halve_passes(self) -> None:
        layout = self.bench.layout
        self.bench.layout = replace(layout, micro_batch=layout.micro_batch // 2)

    def _note_smaller_passes(self, before: int) -> None:
        self.notes.append(
            f"The memory of {self.bench.device} was too small for passes over {before} images at once; "
            f"{self.bench.layout.micro_batch} were taken from there on."
        )


def plain_note(reason: str) -> str:
    """Say why a run does without prefix replay."""
    return f"Measured by whole passes, which takes longer: {reason}."


def _lacks_memory(error: Exception) -> bool:
    said = str(error).lower()
    known = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    return known or "out of memory" in said or "can't allocate memory" in said


def _reason(error: Exception) -> str:
    if isinstance(error, MeasurementFailed):
        return str(error)
    first = first_line_of(error, most=300)
    if _lacks_memory(error):
        return f"There was not enough memory: {first}. Choose a smaller batch size."
    return f"The compressed model failed: {type(error).__name__}: {first}."
