"""Runs made by hand for the tests of schedules and target files: no network, exact costs."""

from collections.abc import Mapping, Sequence

from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.descriptions import CompressionConfig
from senseapp.metrics import MetricChange
from senseapp.records.measurement import LayerMeasurement, RunResult, Status
from senseapp.records.profile import LayerProfile, ModelProfile
from senseapp.records.spec import RunSpec, SensitivitySpec

CONFIGS: dict[str, CompressionConfig] = {
    "sparsity": SparsityConfig(),
    "pruning": PruningConfig(),
    "quantization": QuantizationConfig(),
}


def profile_of(sizes: Mapping[str, int], *, macs_per_weight: int = 10) -> ModelProfile:
    """A model whose layers have these numbers of weights."""
    layers = tuple(
        LayerProfile(
            name=name,
            layer_type="Linear" if name == "fc" else "Conv2d",
            parameter=f"{name}.weight",
            weight_shape=(size, 1, 1, 1),
            num_params=size,
            macs=macs_per_weight * size,
            order=order,
        )
        for order, (name, size) in enumerate(sizes.items())
    )
    total = sum(sizes.values())
    return ModelProfile(
        title="toy",
        layers=layers,
        num_params=total,
        macs=macs_per_weight * total,
        num_bytes=4 * total,
        input_shape=(3, 8, 8),
        num_classes=10,
    )


def change(delta: float, metric: str = "kl") -> MetricChange:
    return MetricChange(
        metric=metric, baseline=0.0, value=delta, delta=delta, ci_low=delta, ci_high=delta, num_samples=8
    )


def measurement(
    layer: str, level: float, delta: float, *, num_params: int, compression: str, metric: str = "kl"
) -> LayerMeasurement:
    removed = 0 if compression == "quantization" else int(level * num_params)
    return LayerMeasurement(
        layer=layer,
        level=level,
        status=Status.MEASURED,
        changes=(change(delta, metric),),
        members=(layer,),
        achieved_level=level,
        removed_params=removed,
        removed_macs=10 * removed,
    )


def run_of(
    sizes: Mapping[str, int],
    damages: Mapping[str, Sequence[float]],
    levels: Sequence[float],
    *,
    compression: str = "sparsity",
    metric: str = "kl",
    config: CompressionConfig | None = None,
    extra: Sequence[LayerMeasurement] = (),
) -> RunResult:
    """A run that found ``damages[layer][i]`` at ``levels[i]``."""
    measurements = tuple(
        measurement(layer, level, delta, num_params=sizes[layer], compression=compression, metric=metric)
        for layer, deltas in damages.items()
        for level, delta in zip(levels, deltas, strict=True)
    )
    return RunResult(
        spec=RunSpec(sensitivity=SensitivitySpec(compression=config or CONFIGS[compression], levels=tuple(levels))),
        profile=profile_of(sizes),
        metric=metric,
        baseline={},
        measurements=(*measurements, *extra),
    )


SIZES = {"conv1": 1_000, "conv2": 10_000, "conv3": 40_000, "fc": 5_000}
LEVELS = (0.25, 0.5, 0.75, 0.9)


def sparse_run() -> RunResult:
    """Four layers: a fragile first one, a large robust one."""
    damages = {
        "conv1": (0.02, 0.10, 0.50, 2.0),
        "conv2": (0.01, 0.03, 0.10, 0.4),
        "conv3": (0.001, 0.004, 0.02, 0.2),
        "fc": (0.0, 0.002, 0.03, 0.3),
    }
    return run_of(SIZES, damages, LEVELS)


def quantized_run() -> RunResult:
    """The same layers at 8, 4, 3 and 2 bits."""
    damages = {
        "conv1": (0.0004, 0.06, 0.3, 1.5),
        "conv2": (0.0001, 0.02, 0.1, 0.6),
        "conv3": (0.00005, 0.01, 0.04, 0.2),
        "fc": (0.00002, 0.004, 0.02, 0.1),
    }
    return run_of(SIZES, damages, (8, 4, 3, 2), compression="quantization")
