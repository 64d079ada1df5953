"""Progress of a run on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import NoReturn, Self

from tqdm import tqdm

from senseapp.records.measurement import LayerMeasurement, RunResult, Status

_TERMINAL_SECONDS, _FILE_SECONDS = 0.1, 5.0


@contextmanager
def phases() -> Iterator[Callable[[str], None]]:
    """Show each step and the time on standard error, where the number of steps is not known."""
    bar: tqdm[NoReturn] = tqdm(bar_format="{desc} [{elapsed}]", file=sys.stderr, dynamic_ncols=True)
    with bar:
        yield bar.set_description_str


class ProgressObserver:
    """Shows the steps of work on a finished run through :func:`phases`."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show

    def phase(self, sentence: str) -> None:
        """Show the step that begins."""
        if sentence:
            self._show(sentence)

    def opened(self, head: RunResult, *, done: int, total: int, predicted_seconds: float) -> None:
        """Never called: the run is finished."""

    def estimated(self, estimate: LayerMeasurement) -> None:
        """Never called: the run is finished."""

    def measured(self, measurement: LayerMeasurement) -> None:
        """Never called: the run is finished."""


class ProgressBar:
    """Shows a run as it goes; appears once the model is loaded, so that bad input costs one line only."""

    def __init__(self) -> None:
        self._bar: tqdm[NoReturn] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def phase(self, sentence: str) -> None:
        """Show the step that begins."""
        if self._bar is not None and sentence:
            self._bar.set_description(sentence)

    def opened(self, head: RunResult, *, done: int, total: int, predicted_seconds: float) -> None:
        """Draw the bar, at what an earlier attempt found."""
        self._bar = tqdm(
            total=total or None,
            initial=done,
            desc=f"{head.profile.title}, {head.num_samples} images",
            unit=" measurements",
            file=sys.stderr,
            mininterval=_TERMINAL_SECONDS if sys.stderr.isatty() else _FILE_SECONDS,
            dynamic_ncols=True,
        )

    def estimated(self, estimate: LayerMeasurement) -> None:
        """Count an estimate where no measurements are planned."""
        if self._bar is not None and self._bar.total is None:
            self._step(estimate)

    def measured(self, measurement: LayerMeasurement) -> None:
        """Count a measurement; a layer that is passed over is none."""
        if measurement.status is not Status.NOT_APPLICABLE:
            self._step(measurement)

    def _step(self, measurement: LayerMeasurement) -> None:
        if self._bar is not None:
            self._bar.set_description(measurement.layer, refresh=False)
            self._bar.update()
