"""Calls after a changed layer that do not depend on it, such as a detector's other heads: computed once, not per level.

Prefix replay repeats all that runs after the changed layer. In a network of parallel branches, a part of that has the
same inputs and weights as before. What depends on what is followed through the operations of the traced pass
(:mod:`senseapp.networks.dependence`), and checked: for a level of the first and last target of each kind, one image is
computed with what the uncompressed model left, and without it, and the outputs must be equal bit for bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from senseapp.measure.plan import PlannedTarget, representative_positions
from senseapp.networks.trace import CallTrace


@dataclass(frozen=True, slots=True)
class UnchangedCalls:
    """Which calls each target leaves unchanged; empty where that saves too little.

    Attributes:
        of: outermost calls that start at the target's position or later, by its index among those planned.
        representative: targets that are checked: the first and the last of each kind.
    """

    of: dict[int, frozenset[int]] = field(default_factory=dict)
    representative: frozenset[int] = frozenset()

    def __getitem__(self, index: int) -> frozenset[int]:
        return self.of.get(index, frozenset())

    def to_check(self, index: int, checked: Container[int]) -> bool:
        """Return whether to check a target, unless it is among those ``checked``."""
        return index in self.representative and index not in checked


def unchanged_calls(
    trace: CallTrace, planned: Sequence[PlannedTarget], *, num_images: int, budget_bytes: int
) -> UnchangedCalls:
    """Choose the calls whose outputs are kept, most multiply-accumulates saved per byte first.

    ``num_images`` are measured together, and the outputs of all of them fit into ``budget_bytes``. None are chosen
    where images decide which modules run.
    """
    few = set(representative_positions(planned))
    if trace.used_by_others or not _saves(trace, [item for item in planned if item.position in few]):
        return UnchangedCalls()
    found = [frozenset(_independent(trace, item)) for item in planned]
    saved: Counter[int] = Counter()
    for calls in found:
        saved.update({call: trace.calls[call].macs for call in calls})
    chosen, left = set(), budget_bytes * trace.batch_size / num_images
    for call in sorted(saved, key=lambda call: trace.calls[call].output_bytes / saved[call]):
        if trace.calls[call].output_bytes <= left:
            left -= trace.calls[call].output_bytes
            chosen.add(call)
    kept = {index: calls & chosen for index, calls in enumerate(found) if calls & chosen}
    seen = set(representative_positions([planned[index] for index in kept]))
    return UnchangedCalls(kept, frozenset(index for index in kept if planned[index].position in seen))


def _saves(trace: CallTrace, planned: Sequence[PlannedTarget]) -> bool:
    """Return whether enough is saved on these targets."""
    repeated = sum(item.suffix for item in planned) * trace.macs
    saved = sum(trace.calls[call].macs for item in planned for call in _independent(trace, item))
    # Below 5 % of what prefix replay repeats, watching the calls is not worth it.
    return saved > 0.05 * repeated


def _independent(trace: CallTrace, item: PlannedTarget) -> Iterator[int]:
    """Yield the outermost calls from the position of ``item`` on that multiply and do not depend on it."""
    if trace.first_event(frozenset(item.target.modules)) is None:  # other images may use it, and these do not
        return
    changed, index = trace.dependence.bits_of(item.target.modules), 0
    while index < len(trace.calls):
        call = trace.calls[index]
        independent = call.start >= item.position and not call.depends & changed
        if independent and call.macs:
            yield index
        index = call.after if independent or call.end < item.position or not call.macs else index + 1
