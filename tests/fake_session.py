"""A session with made-up figures and the engine's behaviour, for everything above the engine."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from senseapp.metrics import MetricChange
from senseapp.records.measurement import LayerMeasurement, RunResult, Status, latest
from senseapp.records.profile import LayerProfile, ModelProfile
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.server.backend import Backend
from senseapp.server.machine import MachineSpeed
from senseapp.server.service import Service

LAYERS = ("stem", "stage.0.conv", "stage.1.conv", "head")
SPEC = RunSpec(sensitivity=SensitivitySpec(levels=(0.25, 0.5)))
TOTAL = len(LAYERS) * 2


def a_profile(names: Sequence[str] = LAYERS) -> ModelProfile:
    layers = tuple(
        LayerProfile(
            name=name,
            layer_type="Conv2d",
            parameter=f"{name}.weight",
            weight_shape=(4, 4, 3, 3),
            num_params=100 * (order + 1),
            macs=1000 * (order + 1),
            order=order,
        )
        for order, name in enumerate(names)
    )
    return ModelProfile(
        title="demo",
        layers=layers,
        num_params=sum(layer.num_params for layer in layers),
        macs=sum(layer.macs for layer in layers),
        num_bytes=4000,
        input_shape=(1, 8, 8),
        num_classes=10,
    )


def a_change(delta: float, *, metric: str = "top1", noise: float = 0.01) -> MetricChange:
    return MetricChange(
        metric=metric,
        baseline=0.98,
        value=0.98 - delta,
        delta=delta,
        ci_low=delta - noise,
        ci_high=delta + noise,
        num_samples=100,
        moments=(100.0, 100 * delta),
    )


def a_measurement(layer: str = "stem", level: float = 0.5, *, delta: float = 0.064, **changes) -> LayerMeasurement:
    values = {"changes": (a_change(delta), a_change(2 * delta, metric="kl")), "members": (layer,)} | changes
    return LayerMeasurement(layer=layer, level=level, status=values.pop("status", Status.MEASURED), **values)


def a_result(
    measurements: Sequence[LayerMeasurement] = (), *, spec: RunSpec = SPEC, names: Sequence[str] = LAYERS, **changes
) -> RunResult:
    return RunResult(
        spec=spec,
        profile=a_profile(names),
        metric=spec.sensitivity.metric or "top1",
        baseline={"top1": 0.98},
        measurements=tuple(measurements),
        num_samples=100,
        **changes,
    )


class FakeSession:
    """Measures :data:`LAYERS` by a formula; may be told to do something after some measurements."""

    def __init__(self, spec: RunSpec, before_yield: Callable[[int], None]) -> None:
        self.spec = spec
        self.profile = a_profile()
        self.closed = False
        self.alike: RunResult | None = None
        self._before_yield = before_yield

    @property
    def targets(self) -> int:
        return 0 if self._quick else len(LAYERS) * len(self.spec.sensitivity.levels)

    @property
    def _quick(self) -> bool:
        return self.spec.sensitivity.mode == "quick"

    def predicted_seconds(self) -> float:
        return 8.0

    def reusable(self) -> tuple[LayerMeasurement, ...]:
        wanted = set(self._plan())
        return tuple(item for item in self.alike.measurements if item.key in wanted) if self.alike else ()

    def estimates(self, preview: object = None) -> Iterator[LayerMeasurement]:
        for layer, level in self._plan():
            yield a_measurement(layer, level, delta=0.05, estimated=True)

    def measure(self, done: Sequence[LayerMeasurement] = ()) -> Iterator[LayerMeasurement]:
        if self._quick:
            return
        known = {item.key for item in done}
        for number, (layer, level) in enumerate(self._plan()):
            if (layer, level) not in known:
                self._before_yield(number)
                yield a_measurement(layer, level, delta=level * (LAYERS.index(layer) + 1) / 100, seconds=0.5)

    def result(
        self, measurements: Sequence[LayerMeasurement], estimates: Sequence[LayerMeasurement] = (), seconds: float = 0.0
    ) -> RunResult:
        return a_result(latest(measurements), spec=self.spec, estimates=latest(estimates), seconds=seconds)

    def close(self) -> None:
        self.closed = True

    def _plan(self) -> list[tuple[str, float]]:
        return [(layer, level) for layer in LAYERS for level in self.spec.sensitivity.levels]


class FakeEngine:
    """Opens fake sessions and remembers how; call it in place of ``open_local_session``."""

    def __init__(self) -> None:
        self.before_yield: Callable[[int], None] = lambda number: None
        self.failure: Exception | None = None
        self.opened: list[FakeSession] = []
        self.earlier: list[RunResult | None] = []
        self.data_roots: tuple[Path, ...] = ()
        self.content_key = ""  # of every run; empty: no two are alike

    def __call__(
        self,
        spec: RunSpec,
        *,
        data_roots: tuple[Path, ...],
        progress: Callable[[str], None],
        earlier: RunResult | None,
        find_alike: Callable[[str], RunResult | None],
    ) -> FakeSession:
        progress("Loading the fake")
        self.earlier.append(earlier)
        self.data_roots = data_roots
        if self.failure is not None:
            raise self.failure
        session = FakeSession(spec, lambda number: self.before_yield(number))
        if earlier is None and self.content_key:
            session.alike = find_alike(self.content_key)
        self.opened.append(session)
        return session


def fake_calibration() -> MachineSpeed:
    return MachineSpeed(macs_per_second=1e9, values_per_second=1e9, seconds_per_call=1e-5)


def a_backend(home: Path, engine: FakeEngine | None = None, **options) -> Backend:
    """Return a server whose jobs are done by ``runner.run_next()``, by ``engine``."""
    usual = {"data_roots": (), "calibrate": fake_calibration, "workers": 0}
    return Backend(home, open_session=engine or FakeEngine(), **(usual | options))


def carried_out(service: Service, spec: RunSpec = SPEC, title: str = "") -> str:
    """Start a run, let it end, and return its id."""
    run_id = service.start(spec, title=title)
    service._backend.runner.run_next()
    return run_id
