"""Tasks of a shared run, and putting what they find back into the order of the images."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from senseapp.distributed.blocks import Block
from senseapp.sensitivity.probe import Order, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one worker is asked for at a time: some orders of one block on one span."""

    block: int
    orders: tuple[Order, ...]

    @property
    def span(self) -> tuple[int, int]:
        """Its images."""
        return self.orders[0].span


def tasks_of(orders: Iterable[Order], blocks: Sequence[Block]) -> Iterator[Task]:
    """Yield the tasks of ``orders``, which come span by span and by ascending target."""
    of_target = {index: number for number, block in enumerate(blocks) for index in range(*block)}
    for (_, block), group in groupby(orders, key=lambda order: (order.span, of_target[order.index])):
        yield Task(block=block, orders=tuple(group))


class InOrder:
    """Holds outcomes back until those of earlier spans of the same block are through."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[_Held]] = {}

    def begun(self, task: Task) -> None:
        """Note that ``task`` was handed out, after all tasks of earlier spans."""
        self._waiting.setdefault(task.block, deque()).append(_Held(task=task, outcomes=deque()))

    def found(self, task: Task, outcome: Outcome) -> None:
        """Take an outcome of ``task``."""
        self._held(task).outcomes.append(outcome)

    def ended(self, task: Task) -> None:
        """Note that no more outcomes of ``task`` will come."""
        self._held(task).ended = True

    def through(self) -> Iterator[Outcome]:
        """Yield and forget what may be counted now."""
        for queue in self._waiting.values():
            while queue:
                while queue[0].outcomes:
                    yield queue[0].outcomes.popleft()
                if not queue[0].ended:
                    break
                queue.popleft()

    def _held(self, task: Task) -> _Held:
        return next(held for held in self._waiting[task.block] if held.task is task)


@dataclass(slots=True)
class _Held:
    task: Task
    outcomes: deque[Outcome]
    ended: bool = False
