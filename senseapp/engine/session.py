"""One run from its settings to its result: what the service and the command line drive.

When a measurement of one run is the very number that another run would find.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from senseapp.core.codec import encode
from senseapp.data.images import ImageSet
from senseapp.data.load import load_images
from senseapp.engine.context import MeasurementContext, choose_device
from senseapp.engine.executor import Executor
from senseapp.engine.layout import Layout
from senseapp.engine.plan import split
from senseapp.engine.preparation_search import choose_preparation
from senseapp.engine.quick.scan import quick_scan
from senseapp.engine.quick.true_passes import correction_note
from senseapp.engine.sweep import Sweep
from senseapp.metrics import METRICS, divergence_among, primary_among
from senseapp.models.load import load_model
from senseapp.models.loaded import LoadedModel
from senseapp.records.measurement import LayerMeasurement, SensitivityResult, Status, latest
from senseapp.records.passes import PassSettings
from senseapp.records.profile import ModelProfile, counting_notes
from senseapp.records.ranking import spearman
from senseapp.records.resolution import visible_words
from senseapp.records.spec import RunSpec
from senseapp.tasks import task_named

_BATCH = 64
_SOURCES = Path(__file__).resolve().parents[1]
_ENGINE = (
    *("compat", "compressions", "core", "data", "engine"),
    *("layers", "metrics", "models", "records", "tasks"),
)
_CHOSEN_PER_RUN = ("levels", "layers", "layer_types", "metric", "mode", "num_samples", "device")
"""Settings that decide which numbers a run has, not what they are; the images themselves and the device that was found
are parts of the key."""


def content_key(spec: RunSpec, model: LoadedModel, images: ImageSet, versions: Mapping[str, str]) -> str:
    """Return one hash over everything that decides the numbers of a run: weights, images, settings, versions.

    Where files lie and what they are called is no part of it. Runs with equal keys that also pass alike (see
    :func:`arithmetic_of`) find the same number, bit for bit, for each layer and level that both measure.
    """
    digest = hashlib.sha256(json.dumps([_settings(spec), sorted(versions.items()), _engine()]).encode())
    digest.update(f"{model.title} {model.preprocessing!r} {model.module!r}".encode())
    for name, tensor in sorted(model.module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(_bytes_of(tensor))
    digest.update(f"{len(images)} images {images.indicative}".encode())
    for start in range(0, len(images), _BATCH):
        digest.update(_bytes_of(images.batch(start, min(start + _BATCH, len(images)))))
    if images.labels is not None:
        digest.update(_bytes_of(images.labels))
    return digest.hexdigest()


@functools.cache
def _engine() -> str:
    """Return a hash of the code that measures: a version number says too little of a copy that is worked on."""
    digest = hashlib.sha256()
    for package in _ENGINE:
        for path in sorted((_SOURCES / package).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _settings(spec: RunSpec) -> object:
    data = encode(dataclasses.replace(spec, model=dataclasses.replace(spec.model, checkpoint="")))["data"]
    return [
        data["model"],
        {name: value for name, value in data["sensitivity"].items() if name not in _CHOSEN_PER_RUN},
    ]


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def arithmetic_of(result: SensitivityResult) -> tuple[Layout, int]:
    """Return how the passes of a run were made: their layout, and the most images measured together (0: as fits)."""
    ran = result.passes
    layout = Layout(
        channels_last=ran.channels_last,
        micro_batch=ran.micro_batch,
        precision=result.precision,
        levels_together=ran.levels_together,
    )
    return layout, ran.images_at_once


def images_in_span(sweep: Sweep) -> int:
    """Return how many images are measured together; sums over other spans may differ in their last bit."""
    return sweep.chunks()[0][1]


def reusable(sweep: Sweep, earlier: SensitivityResult) -> tuple[LayerMeasurement, ...]:
    """Return the measurements of ``earlier``, a run with an equal :func:`content_key`, that ``sweep`` would repeat.

    None where the passes were made otherwise: in another layout, or over other spans of images. Nor where the ranking
    decides how many images each layer is measured on.
    """
    if sweep.spec.until_settled:
        return ()
    layout, _ = arithmetic_of(earlier)
    same_passes = layout == sweep.bench.layout and earlier.passes.images_in_span == images_in_span(sweep)
    if layout.levels_together > 1 and earlier.spec.sensitivity.levels != sweep.spec.levels:
        return ()  # other levels share the passes, of another size, which may round otherwise
    if not same_passes or (earlier.method == "plain") != bool(sweep.bench.unsafe):
        return ()
    targets = {item.target.layer: item.target for item in sweep.planned}
    return tuple(
        item
        for item in _finished(earlier.measurements, len(sweep.bench.images))
        if item.level in sweep.spec.levels
        and (target := targets.get(item.layer)) is not None
        and (item.group, item.members) == (target.group, target.members)
    )


def _finished(measurements: Iterable[LayerMeasurement], num_images: int) -> Iterable[LayerMeasurement]:
    """Yield those that were made on all images; one that failed is tried again."""
    return (
        item
        for item in measurements
        if item.status is Status.MEASURED and all(change.num_samples == num_images for change in item.changes)
    )


def _silent(_sentence: str) -> None:
    """Say nothing."""


def _none(_content_key: str) -> None:
    """Know no earlier run."""


@dataclass(slots=True)
class Session:
    """One model, one image set and one spec, prepared to be measured.

    Attributes:
        spec: the settings.
        model: what was loaded; its module belongs to :attr:`sweep`.
        images: what is measured on.
        sweep: the prepared measurement.
        held_out: images kept from the measurement, to prove schedules on; empty where a number was asked for.
        alike: an earlier run of the same, whose measurements may be taken over; None if there is none.
    """

    spec: RunSpec
    model: LoadedModel
    images: ImageSet
    sweep: Sweep
    held_out: ImageSet
    alike: SensitivityResult | None = None

    @classmethod
    def open(
        cls,
        spec: RunSpec,
        *,
        data_roots: tuple[Path, ...] = (),
        progress: Callable[[str], None] = _silent,
        layout: Layout | None = None,
        span_images: int | None = None,
        executor: Executor | None = None,
        find_alike: Callable[[str], SensitivityResult | None] = _none,
    ) -> Session:
        """Load everything that ``spec`` names and prepare the measurement.

        Args:
            spec: the settings; where its images' preparation is ``auto``, the session's own say what was chosen.
            data_roots: folders that image folders may lie in; empty allows any (the command line).
            progress: is told in one short sentence what is being done.
            layout: of the run that is resumed; None chooses one by a timed trial.
            span_images: of the run that is resumed; None lets the executor choose.
            executor: makes the passes; None makes them here.
            find_alike: asked, where no layout is given, for an earlier run with this content key; its arithmetic is
                used again, so that its measurements are those of this run: see :meth:`reusable`.

        Raises:
            SenseError: the model or the images cannot be loaded, or the settings do not fit them.
        """
        if spec.data.preparation == "auto":
            choice = choose_preparation(spec, data_roots=data_roots, progress=progress)
            spec = choice.spec
            progress(choice.verdict)
        progress("Loading the model")
        model, task = load_model(spec.model, progress=progress), task_named(spec.model.task)
        progress("Loading the images")
        images = load_images(
            spec.data,
            model.preprocessing,
            num_classes=model.num_classes,
            task=task,
            num_samples=spec.sensitivity.num_samples,
            seed=spec.sensitivity.seed,
            data_roots=data_roots,
            class_names=model.class_names,
            with_labels=not model.fresh_head,
            progress=progress,
        )
        held_out = images.subset([])
        if spec.sensitivity.num_samples is None:
            images, held_out = split(images, spec.sensitivity.seed)
        alike = None
        if layout is None:
            progress("Looking for measurements of the same")
            versions = _versions(choose_device(spec.sensitivity.device))
            alike = find_alike(content_key(spec, model, images, versions))
        if alike is not None:
            layout, span_images = arithmetic_of(alike)
        progress("Preparing the passes" if spec.sensitivity.mode == "quick" else "Measuring the uncompressed model")
        sweep = Sweep.open(
            model.module,
            images,
            spec.sensitivity,
            task=task,
            layout=layout,
            own=True,
            executor=executor,
            span_images=span_images,
        )
        return cls(spec, model, sweep.bench.images, sweep, held_out, alike)

    def reusable(self) -> tuple[LayerMeasurement, ...]:
        """Return the measurements of an earlier run of the same that :meth:`measure` would repeat, bit for bit."""
        return () if self.alike is None or not self.targets else reusable(self.sweep, self.alike)

    @property
    def profile(self) -> ModelProfile:
        """The model's size and compressible layers."""
        model = self.model
        return replace(self.sweep.bench.profile, title=model.title, pretrained=model.pretrained, notes=model.notes)

    @property
    def targets(self) -> int:
        """How many measurements are planned at most."""
        return 0 if self.spec.sensitivity.mode == "quick" else self.sweep.total

    @property
    def baseline(self) -> dict[str, float]:
        """The uncompressed model's metrics; none before the estimates of a quick run."""
        return self.sweep.yardstick.values()

    @property
    def num_samples(self) -> int:
        """Images measured on."""
        return len(self.images)

    @property
    def metric(self) -> str:
        """The metric that ranks layers."""
        return self.sweep.metric

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on anything approximated, skipped or unusual."""
        kept, total = len(self.held_out), len(self.held_out) + len(self.images)
        split_note = (f"{kept} of {total} images were kept to prove schedules on.",) if kept else ()
        counted = counting_notes(self.sweep.bench.profile, self.spec.sensitivity.compression.kind)
        return (
            *self.model.notes,
            *self.spec.data.chosen_by,
            *split_note,
            *counted,
            *self._metric_note(),
            *self.sweep.notes,
        )

    def _metric_note(self) -> tuple[str, ...]:
        """Say why labelled images do not rank layers by accuracy, where nobody has chosen that."""
        primary = primary_among(self.sweep.yardstick.metrics, labelled=True)
        if self.spec.sensitivity.metric is not None or primary is None or primary == self.metric:
            return ()
        metric = METRICS[primary]
        hidden = visible_words(primary, metric.unchanged_upper_end(self.num_samples))
        images = f"{self.num_samples} image{'s' if self.num_samples != 1 else ''}"
        return (
            f"Layers are ranked by {METRICS[self.metric].label}: {images} cannot show a {metric.change_inside} under "
            f"about {hidden}.",
        )

    @property
    def layout(self) -> Layout:
        """How passes run; hand it to :meth:`open` to resume with the very same arithmetic."""
        return self.sweep.bench.layout

    def predicted_seconds(self) -> float:
        """Return how long :meth:`measure` takes, from the timed baseline."""
        return 0.0 if self.spec.sensitivity.mode == "quick" else self.sweep.predicted_seconds()

    def estimates(self) -> Iterator[LayerMeasurement]:
        """Yield an estimate for each layer and level, from one backward pass."""
        yield from quick_scan(self.sweep)

    def measure(self, done: Iterable[LayerMeasurement] = ()) -> Iterator[LayerMeasurement]:
        """Yield the measurements that ``done`` does not hold yet; in quick mode none but that of the whole model."""
        if self.spec.sensitivity.mode == "exact":
            yield from self.sweep.measure(done)
        else:
            self.sweep.complete_baseline()

    def result(
        self,
        measurements: Sequence[LayerMeasurement],
        estimates: Sequence[LayerMeasurement] = (),
        seconds: float = 0.0,
    ) -> SensitivityResult:
        """Put together what was measured and estimated."""
        final, guessed = latest(measurements), latest(estimates)
        failed = sum(item.status is Status.FAILED for item in final)
        notes = (*self.notes, *correction_note(guessed))
        notes += (f"{failed} measurements failed; their rows give the reason.",) if failed else ()
        bench = self.sweep.bench
        passes = _pass_settings(self.sweep)
        return SensitivityResult(
            spec=self.spec,
            profile=self.profile,
            metric=self.metric,
            baseline=self.baseline,
            measurements=final,
            estimates=guessed,
            num_samples=self.num_samples,
            has_labels=self.images.labels is not None,
            precision=bench.layout.precision,
            method="plain" if bench.unsafe else "replay",
            agreement=estimate_agreement(guessed, final),
            notes=notes,
            environment=_environment(passes, bench) | self.sweep.executor.environment(),
            passes=passes,
            seconds=seconds,
        )

    def close(self) -> None:
        """Let go of the model and the images."""
        del self.sweep, self.model, self.images, self.held_out


def estimate_agreement(
    estimates: Iterable[LayerMeasurement], measurements: Iterable[LayerMeasurement]
) -> dict[str, float]:
    """Return Spearman's rank correlation of estimated and measured divergence, by level, where both exist."""
    estimates = tuple(estimates)
    metric = divergence_among({change.metric for item in estimates for change in item.changes}) or ""
    guessed = {item.key: change.delta for item in estimates if (change := item.change(metric))}
    pairs: dict[float, list[tuple[float, float]]] = {}
    for item in measurements:
        change = item.change(metric)
        if change and item.key in guessed:
            pairs.setdefault(item.level, []).append((guessed[item.key], change.delta))
    return {
        f"{level:g}": spearman([first for first, _ in both], [second for _, second in both])
        for level, both in sorted(pairs.items())
        if len(both) >= 3
    }


def _pass_settings(sweep: Sweep) -> PassSettings:
    layout = sweep.bench.layout
    return PassSettings(
        channels_last=layout.channels_last,
        micro_batch=layout.micro_batch,
        levels_together=layout.levels_together,
        images_at_once=sweep.span_images,
        images_in_span=images_in_span(sweep),
        workers=sweep.executor.workers,
    )


def _environment(passes: PassSettings, bench: MeasurementContext) -> dict[str, str]:
    return _versions(bench.device) | {
        "memory_layout": "channels_last" if passes.channels_last else "contiguous",
        "micro_batch": str(passes.micro_batch),
        "levels_together": str(passes.levels_together),
        "precision": bench.layout.precision,
        "images_at_once": str(passes.images_at_once),
        "images_in_span": str(passes.images_in_span),
    }


def _versions(device: torch.device) -> dict[str, str]:
    import timm
    import torch_pruning
    import torchvision

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "timm": timm.__version__,
        "torch-pruning": torch_pruning.__version__,
        "device": str(device),
        "threads": str(torch.get_num_threads()),
    }
