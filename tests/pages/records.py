"""A made-up run of a small network, with every kind of measurement, and an engine session that replays it."""

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from senseapp.compressions import QuantizationConfig
from senseapp.metrics import MetricChange
from senseapp.records.layer_findings import QuantizationHistogram
from senseapp.records.measurement import LayerMeasurement, RunResult, Status
from senseapp.records.profile import FlowNode, LayerProfile, ModelProfile
from senseapp.records.spec import HistogramSpec, RunSpec, SensitivitySpec
from senseapp.tasks.reading import Evidence, Reading

NAMES = ("conv1", "layer1.0.conv1", "layer1.0.conv2", "layer2.0.conv1", "layer2.0.downsample.0", "fc")
FRAGILE = "layer2.0.conv1"
NOT_PRUNABLE = "layer2.0.downsample.0"
NUM_IMAGES = 512


def profile(names: Iterable[str] = NAMES) -> ModelProfile:
    layers = tuple(
        LayerProfile(
            name=name,
            layer_type="Linear" if name == "fc" else "Conv2d",
            parameter=f"{name}.weight",
            weight_shape=(10, 64) if name == "fc" else (16, 8, 3, 3),
            num_params=640 if name == "fc" else 1152,
            macs=640 if name == "fc" else 1152 * 64,
            input_shape=(64,) if name == "fc" else (8, 8, 8),
            output_shape=(10,) if name == "fc" else (16, 8, 8),
            order=order,
        )
        for order, name in enumerate(names)
    )
    chain = (FlowNode(name=layer.name, kind="layer", inputs=(layer.order,)) for layer in layers)
    return ModelProfile(
        title="demo",
        layers=layers,
        num_params=sum(layer.num_params for layer in layers) + 100,
        macs=sum(layer.macs for layer in layers),
        num_bytes=4 * sum(layer.num_params for layer in layers),
        input_shape=(1, 32, 32),
        num_classes=10,
        flow=(FlowNode(name="image", kind="input"), *chain),
    )


def a_reading(values: str = "values from 0 to 1", evidence: Evidence = "library", **changes: Any) -> Reading:
    """Return a reading of digits."""
    parts: dict[str, tuple[str, Evidence]] = {
        "task": ("Classification: one class per image", "library"),
        "layout": ("classes", "library"),
        "preparation": (f"32 × 32 pixels, {values}, crop", evidence),
        "classes": ("10 classes of the model", "fit"),
    }
    return Reading(
        task="classification",
        input_shape=(1, 32, 32),
        evidence=tuple((part, how) for part, (_, how) in parts.items()),
        words=tuple((part, said) for part, (said, _) in parts.items()),
        **changes,
    )


def change(metric: str, delta: float, half_width: float) -> MetricChange:
    baseline = {"loss": 0.08, "kl": 0.0, "agreement": 1.0, "sqnr": float("inf")}.get(metric, 0.98)
    return MetricChange(
        metric=metric,
        baseline=baseline,
        value=baseline + delta if (metric in ("loss", "kl")) else (12.0 if metric == "sqnr" else baseline - delta),
        delta=delta,
        ci_low=max(0.0, delta - half_width) if metric == "kl" else delta - half_width,
        ci_high=delta + half_width,
        num_samples=NUM_IMAGES,
    )


def measurement(
    name: str, order: int, level: float, *, severity: float, estimated: bool = False, params: int = 1152
) -> LayerMeasurement:
    damage = severity * (0.16 if name == FRAGILE else 0.004 * order)
    half_width = 0.0 if estimated else 0.006
    metrics = ("loss", "kl") if estimated else ("top1", "loss", "kl", "agreement", "sqnr")
    return LayerMeasurement(
        layer=name,
        level=level,
        status=Status.MEASURED,
        changes=tuple(change(metric, damage, half_width) for metric in metrics),
        estimated=estimated,
        members=(name,),
        achieved_level=level,
        removed_params=int(params * level) if level < 1 else 0,
        removed_macs=int(params * 64 * level) if level < 1 else 0,
        seconds=0.01,
    )


def severity(spec: RunSpec, level: float) -> float:
    return (8 - level) / 6 if isinstance(spec.sensitivity.compression, QuantizationConfig) else level


def measurements(spec: RunSpec, *, estimated: bool = False, names: Iterable[str] = NAMES) -> list[LayerMeasurement]:
    found = []
    for order, name in enumerate(names):
        for level in spec.sensitivity.levels:
            if name == NOT_PRUNABLE and spec.sensitivity.compression.kind == "pruning":
                reason = "Its channels are added to those of layer2.0.conv2."
                status = Status.NOT_APPLICABLE
                found.append(LayerMeasurement(layer=name, level=level, status=status, reason=reason, members=(name,)))
            else:
                found.append(measurement(name, order, level, severity=severity(spec, level), estimated=estimated))
    return found


def result(spec: RunSpec | None = None, *, names: Iterable[str] = NAMES, estimates: bool = False) -> RunResult:
    spec = spec or RunSpec(sensitivity=SensitivitySpec(levels=(0.25, 0.5, 0.75)))
    names = tuple(names)
    return RunResult(
        spec=spec,
        profile=profile(names),
        metric=spec.sensitivity.metric or "top1",
        baseline={"top1": 0.98, "loss": 0.08},
        measurements=tuple(measurements(spec, names=names)),
        estimates=tuple(measurements(spec, estimated=True, names=names)) if estimates else (),
        num_samples=NUM_IMAGES,
        agreement={"0.5": 0.97} if estimates else {},
        environment={"memory_layout": "default", "micro_batch": "16", "precision": "fp32"},
        seconds=12.0,
    )


class ScriptedSession:
    """An engine session that hands out made-up measurements, one each time ``gate`` lets it."""

    def __init__(self, spec: RunSpec, gate: threading.Semaphore | None) -> None:
        self._spec = spec
        self._gate = gate
        self.profile = profile()
        self.targets = len(NAMES) * len(spec.sensitivity.levels)

    def predicted_seconds(self) -> float:
        return 12.0

    def reusable(self) -> tuple[LayerMeasurement, ...]:
        return ()

    def estimates(self, preview: object = None) -> Iterator[LayerMeasurement]:
        yield from measurements(self._spec, estimated=True)

    def measure(self, done: Iterable[LayerMeasurement] = ()) -> Iterator[LayerMeasurement]:
        known = {item.key for item in done}
        for item in measurements(self._spec) if self._spec.sensitivity.mode == "exact" else ():
            if item.key not in known:
                while self._gate is not None and not self._gate.acquire(timeout=0.05):
                    pass
                yield item

    def result(
        self, measurements: Iterable[LayerMeasurement], estimates: Iterable[LayerMeasurement] = (), seconds: float = 0.0
    ) -> RunResult:
        whole = result(self._spec)
        return replace(whole, measurements=tuple(measurements), estimates=tuple(estimates), seconds=seconds)

    def close(self) -> None:
        """Nothing is held."""


def opener(gate: threading.Semaphore | None = None) -> Callable[..., ScriptedSession]:
    def open_session(spec: RunSpec, **_: object) -> ScriptedSession:
        return ScriptedSession(spec, gate)

    return open_session


def a_histogram(*, bits: int = 2, scale: float = 0.5, sub_bins: int = 4) -> QuantizationHistogram:
    """Cell k of a symmetric grid holds k + 1 values, all in its second bin."""
    cells = 2**bits - 1
    counts = [float(cell + 1) if index == 1 else 0.0 for cell in range(cells) for index in range(sub_bins)]
    return QuantizationHistogram(
        spec=HistogramSpec(layer="conv1", bits=bits),
        cells=cells,
        sub_bins=sub_bins,
        zero_cell=cells // 2,
        scale=scale,
        low=-0.6,
        high=0.55,
        counts=tuple(counts),
        gradient_sums=tuple(-count for count in counts),
        gradient_magnitudes=tuple(2 * count for count in counts),
        place_sums=tuple((cell + 1) * (cell - 0.2) for cell in range(cells)),
        zeros=float(cells // 2 + 1),
        clamped=1.0,
        num_images=8,
    )
