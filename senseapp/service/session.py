"""What the service needs of the engine, as protocols; a test passes a session of its own in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from senseapp.results import LayerMeasurement, ModelProfile, SensitivityResult
from senseapp.spec import RunSpec

__all__ = ["AnalysisSession", "OpenSession", "open_engine_session"]


class AnalysisSession(Protocol):
    """One model, one image set and one spec, prepared for measuring."""

    @property
    def profile(self) -> ModelProfile:
        """The model."""

    @property
    def targets(self) -> int:
        """Measurements planned: one per (layer or group) and level."""

    def predicted_seconds(self) -> float:
        """Return the predicted time of all measurements, from a short timed trial."""

    def estimates(self) -> Iterator[LayerMeasurement]:
        """Yield the quick scan's estimates."""

    def measure(self, done: Iterable[LayerMeasurement] = ()) -> Iterator[LayerMeasurement]:
        """Yield the measurements that ``done`` lacks."""

    def result(
        self,
        measurements: Iterable[LayerMeasurement],
        estimates: Iterable[LayerMeasurement] = (),
        seconds: float = 0.0,
    ) -> SensitivityResult:
        """Return everything found, in one record; also for no measurements at all."""

    def close(self) -> None:
        """Give back what the session holds."""


class OpenSession(Protocol):
    """Loads the model and the images of a spec."""

    def __call__(
        self, spec: RunSpec, *, data_roots: tuple[Path, ...], progress: Callable[[str], None]
    ) -> AnalysisSession:
        """Return the prepared session; ``progress`` is told one sentence before each long step."""


def open_engine_session(
    spec: RunSpec, *, data_roots: tuple[Path, ...], progress: Callable[[str], None]
) -> AnalysisSession:
    """Prepare the engine's own session; this is where torch is loaded.

    Raises:
        InvalidInput: the model, the images or the settings cannot be used.
    """
    from senseapp.sensitivity import Session  # torch loads here, not when the app starts

    return Session.open(spec, data_roots=data_roots, progress=progress)
