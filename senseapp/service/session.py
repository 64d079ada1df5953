"""What the service needs of the engine, as protocols; a test passes a session of its own in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from senseapp.distributed.cluster import cluster_address
from senseapp.results import LayerMeasurement, ModelProfile, SensitivityResult
from senseapp.service.engine import load_engine
from senseapp.service.job_process import JobProcess, ProcessSession, cluster_lost
from senseapp.spec import RunSpec


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
) -> AnalysisSession:
    """Prepare the engine's own session on this machine; this is where torch is loaded.

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
        find_alike=find_alike,
    )


def open_engine_session(
    spec: RunSpec,
    *,
    data_roots: tuple[Path, ...],
    progress: Callable[[str], None],
    earlier: SensitivityResult | None,
    find_alike: Callable[[str], SensitivityResult | None] = lambda content_key: None,
    here: OpenSession = open_local_session,
) -> AnalysisSession:
    """Prepare an exact run on the cluster that ``SENSEAPP_RAY_ADDRESS`` names, everything else by ``here``.

    Raises:
        InvalidInput: the model, the images or the settings cannot be used.
        ClusterFailed: the cluster cannot be used.
    """
    address = cluster_address() if spec.sensitivity.mode == "exact" else ""
    if not address:
        return here(spec, data_roots=data_roots, progress=progress, earlier=earlier, find_alike=find_alike)
    progress("Joining the cluster")
    return ProcessSession(
        JobProcess(cluster_lost),
        spec,
        address=address,
        data_roots=data_roots,
        progress=progress,
        earlier=earlier,
        find_alike=find_alike,
    )
