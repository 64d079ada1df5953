"""What the service needs of the engine, as protocols; a test passes a session of its own in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from senseapp.results import LayerMeasurement, ModelProfile, SensitivityResult
from senseapp.service.engine import load_engine
from senseapp.spec import RunSpec

if TYPE_CHECKING:
    from senseapp.sensitivity.executor import Executor


class AnalysisSession(Protocol):
    """One model, one image set and one spec, prepared for measuring."""

    @property
    def profile(self) -> ModelProfile:
        """The model."""

    @property
    def targets(self) -> int:
        """Measurements that :meth:`measure` yields at most; 0 in quick mode."""

    def predicted_seconds(self) -> float:
        """Return the predicted time of all measurements, from a short timed trial."""

    def reusable(self) -> tuple[LayerMeasurement, ...]:
        """Return measurements of an earlier run of the same that :meth:`measure` would repeat, bit for bit."""

    def estimates(self) -> Iterator[LayerMeasurement]:
        """Yield the quick scan's estimates."""

    def measure(self, done: Sequence[LayerMeasurement] = ()) -> Iterator[LayerMeasurement]:
        """Yield what ``done`` lacks; a later measurement of a layer and level replaces an earlier one."""

    def result(
        self,
        measurements: Sequence[LayerMeasurement],
        estimates: Sequence[LayerMeasurement] = (),
        seconds: float = 0.0,
    ) -> SensitivityResult:
        """Return everything found, in one record; also for no measurements at all."""

    def close(self) -> None:
        """Give back what the session holds."""


class OpenSession(Protocol):
    """Loads the model and the images of a spec."""

    def __call__(
        self,
        spec: RunSpec,
        *,
        data_roots: tuple[Path, ...],
        progress: Callable[[str], None],
        earlier: SensitivityResult | None,
        find_alike: Callable[[str], SensitivityResult | None],
    ) -> AnalysisSession:
        """Return the prepared session.

        Args:
            spec: the settings.
            data_roots: folders that images may be read from; empty allows any.
            progress: is told one sentence before each long step, and now and then an empty one: it may raise to stop.
            earlier: of the attempt that is resumed; the very same arithmetic is used again.
            find_alike: asked for an earlier run by a hash over everything that decides this one's numbers.
        """


def open_local_session(
    spec: RunSpec,
    *,
    data_roots: tuple[Path, ...],
    progress: Callable[[str], None],
    earlier: SensitivityResult | None,
    find_alike: Callable[[str], SensitivityResult | None] = lambda content_key: None,
    executor: Executor | None = None,
) -> AnalysisSession:
    """Prepare the engine's own session; this is where torch is loaded. None as ``executor`` is this machine.

    Raises:
        InvalidInput: the model, the images or the settings cannot be used.
    """
    load_engine()
    from senseapp.sensitivity import Session, arithmetic_of  # torch loads here, not when the app starts

    layout, span_images = (None, None) if earlier is None else arithmetic_of(earlier)
    return Session.open(
        spec if earlier is None else earlier.spec,
        data_roots=data_roots,
        progress=progress,
        layout=layout,
        span_images=span_images,
        executor=executor,
        find_alike=find_alike,
    )
