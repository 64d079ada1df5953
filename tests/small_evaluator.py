"""A schedule evaluator of a small network, with images of random numbers and nothing measured."""

from collections.abc import Callable
from dataclasses import replace

from torch import nn

from senseapp.compressions import QuantizationConfig
from senseapp.core.steps import ignore_progress
from senseapp.data.images import TensorImages
from senseapp.descriptions import CompressionConfig
from senseapp.measure.context import MeasurementContext
from senseapp.networks.loaded import LoadedModel, Preprocessing
from senseapp.networks.onnx.open import OpenedOnnx
from senseapp.prove.evaluator import ProofImages, ScheduleEvaluator
from senseapp.records.measurement import RunResult
from senseapp.records.schedule import Schedule, ScheduleEntry
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.tasks import CLASSIFICATION
from tests.small_models import images_for


def evaluator_of(
    network: nn.Module,
    *configs: CompressionConfig,
    count: int = 48,
    curves: TensorImages | None = None,
    progress: Callable[[str], None] = ignore_progress,
    onnx: OpenedOnnx | None = None,
) -> ScheduleEvaluator:
    """Return it for a network of images (3, 8, 8); ``configs`` are those of one or two runs."""
    profile = replace(MeasurementContext.prepare(network, images_for(2), task=CLASSIFICATION).profile, title="small")
    level = 3.0 if isinstance(configs[0], QuantizationConfig) else 0.5
    spec = RunSpec(sensitivity=SensitivitySpec(compression=configs[0], levels=(level,)))
    result = RunResult(spec=spec, profile=profile, metric="kl", baseline={}, measurements=(), num_samples=count)
    model = LoadedModel(
        module=network,
        title="small",
        preprocessing=Preprocessing(input_shape=(3, 8, 8), mean=(0.5,) * 3, std=(0.5,) * 3),
        num_classes=profile.num_classes,
        pretrained=True,
        onnx=onnx,
    )
    images = ProofImages(curves=curves or images_for(count), proof=images_for(40, seed=9), note="")
    return ScheduleEvaluator.open(
        result, other=configs[1] if len(configs) > 1 else None, model=model, images=images, progress=progress
    )


def schedule_of(evaluator: ScheduleEvaluator, compression: str, level: float) -> Schedule:
    """Return a schedule that gives all layers this level."""
    entries = tuple(
        ScheduleEntry(layer=layer.name, members=(layer.name,), compression=compression, level=level)
        for layer in evaluator.profile.layers
    )
    return Schedule(model="small", method="manual", entries=entries, metric="kl")
