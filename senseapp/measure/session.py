"""One run from settings to result, as the service and the command line use it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

import torch

from senseapp.core.errors import SeveralLabelsError
from senseapp.core.registry import grouped
from senseapp.data.images import ImageSet, follow
from senseapp.data.load import images_for
from senseapp.data.pictures import SEVERAL_NOTE
from senseapp.descriptions import SOURCES
from senseapp.measure.context import MeasurementContext, choose_device
from senseapp.measure.measurer import Executor
from senseapp.measure.plan import Layout, settle_kernels, split
from senseapp.measure.preparation_search import choose_class_order, choose_preparation
from senseapp.measure.quick.scan import Preview, quick_scan
from senseapp.measure.quick.true_passes import correction_note
from senseapp.measure.readings import reading_of
from senseapp.measure.reuse import arithmetic_of, content_key, images_in_span, reusable, versions_here
from senseapp.measure.sweep import Sweep
from senseapp.metrics import METRICS, divergence_among, primary_among
from senseapp.networks.loaded import LoadedModel
from senseapp.networks.sources.load import load_model
from senseapp.records.measurement import LayerMeasurement, PassSettings, RunResult, Status, latest
from senseapp.records.profile import ModelProfile, counting_notes
from senseapp.records.resolution import spearman, unseen_below
from senseapp.records.spec import RunSpec
from senseapp.tasks import MULTILABEL, task_named


@dataclass(slots=True)
class Session:
    """One model, one image set and one spec, prepared for measurement.

    ``held_out`` are images to prove schedules on; ``alike`` is an earlier run whose measurements may be reused.
    """

    spec: RunSpec
    model: LoadedModel
    images: ImageSet
    sweep: Sweep
    held_out: ImageSet
    alike: RunResult | None = None

    @classmethod
    def open(
        cls,
        spec: RunSpec,
        *,
        data_roots: tuple[Path, ...] = (),
        progress: Callable[[str], None] = lambda _sentence: None,
        earlier: RunResult | None = None,
        executor: Executor | None = None,
        find_alike: Callable[[str], RunResult | None] = lambda _content_key: None,
    ) -> Self:
        """Load everything that ``spec`` names and prepare the measurement.

        With ``auto`` preprocessing, the session's own settings record the choice. ``earlier`` is the result of the
        attempt to resume, whose settings, layout and spans of images are used again. Without it, ``find_alike`` looks
        up an earlier run by content key; its layout and spans are used again, so that its measurements are valid for
        this run: see :meth:`reusable`.

        Raises SenseError if the model or the images cannot be loaded, or the settings do not fit them.
        """
        spec = spec if earlier is None else earlier.spec
        try:
            spec, model, images = _loaded(spec, data_roots, progress)
        except SeveralLabelsError:  # which the weights do not show
            spec, model, images = _loaded(_as_multilabel(spec), data_roots, progress)
        device = choose_device(spec.sensitivity.device)
        settle_kernels(device)
        held_out = images.subset([])
        if spec.sensitivity.num_samples is None:
            images, held_out = split(images, spec.sensitivity.seed)
        alike = None
        if earlier is None:
            progress("Looking for measurements of the same")
            earlier = alike = find_alike(content_key(spec, model, images, _versions(device)))
        layout, span_images = (None, None) if earlier is None else arithmetic_of(earlier)
        progress("Preparing the passes")
        sweep = Sweep.open(
            model.module,
            images,
            spec.sensitivity,
            task=task_named(spec.model.task),
            layout=layout,
            own=True,
            executor=executor,
            span_images=span_images,
            progress=progress,
        )
        return cls(spec, model, sweep.context.images, sweep, held_out, alike)

    def reusable(self) -> tuple[LayerMeasurement, ...]:
        """Return the measurements of an earlier equal run that :meth:`measure` would repeat bit for bit."""
        return () if self.alike is None or not self.targets else reusable(self.sweep, self.alike)

    @property
    def profile(self) -> ModelProfile:
        """The model's size and compressible layers."""
        model = self.model
        return replace(self.sweep.context.profile, title=model.title, pretrained=model.pretrained, notes=model.notes)

    @property
    def targets(self) -> int:
        """Largest number of measurements."""
        return 0 if self.spec.sensitivity.mode == "quick" else self.sweep.total

    @property
    def baseline(self) -> dict[str, float]:
        """The uncompressed model's metrics; empty before the estimates of a quick run."""
        return self.sweep.baseline.values()

    @property
    def metric(self) -> str:
        """The metric that ranks layers."""
        return self.sweep.metric

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on anything approximated, skipped or unusual."""
        kept, total = len(self.held_out), len(self.held_out) + len(self.images)
        split_note = (f"{kept} of {total} images were kept to prove schedules on.",) if kept else ()
        return (
            *self.model.notes,
            *self.spec.data.chosen_by,
            *split_note,
            *counting_notes(self.sweep.context.profile, self.spec.sensitivity.compression.kind),
            *self._metric_note(),
            *self.sweep.notes,
        )

    def _metric_note(self) -> tuple[str, ...]:
        primary = primary_among(self.sweep.baseline.metrics, labelled=True)
        if self.spec.sensitivity.metric is not None or primary is None or primary == self.metric:
            return ()
        hidden = unseen_below(len(self.images), primary, METRICS[primary].unchanged_upper_end(len(self.images)))
        return (f"Layers are ranked by {METRICS[self.metric].label}: {hidden}.",)

    @property
    def layout(self) -> Layout:
        """Layout of the passes."""
        return self.sweep.context.layout

    def predicted_seconds(self) -> float:
        """Return how long :meth:`measure` takes, from the timed baseline."""
        return 0.0 if self.spec.sensitivity.mode == "quick" else self.sweep.executor.predicted_seconds(self.sweep)

    def estimates(self, preview: Preview | None = None) -> Iterator[LayerMeasurement]:
        """Yield an estimate for each layer and level, from backward passes; see :func:`quick_scan` for ``preview``."""
        yield from quick_scan(self.sweep, preview)

    def measure(self, done: Iterable[LayerMeasurement] = ()) -> Iterator[LayerMeasurement]:
        """Yield the measurements missing in ``done``; in quick mode, only measure the baseline."""
        if self.spec.sensitivity.mode == "exact":
            yield from self.sweep.measure(done)
        else:
            self.sweep.complete_baseline()

    def result(
        self, measurements: Sequence[LayerMeasurement], estimates: Sequence[LayerMeasurement] = (), seconds: float = 0.0
    ) -> RunResult:
        """Return the result from measurements and estimates."""
        final, guessed = latest(measurements), latest(estimates)
        failed = sum(item.status is Status.FAILED for item in final)
        notes = (*self.notes, *correction_note(latest((*guessed, *final))))
        notes += (f"{failed} measurements failed; their rows give the reason.",) if failed else ()
        context = self.sweep.context
        passes = PassSettings(
            channels_last=context.layout.channels_last,
            micro_batch=context.layout.micro_batch,
            images_at_once=self.sweep.span_images,
            images_in_span=images_in_span(self.sweep),
            workers=self.sweep.executor.workers,
        )
        return RunResult(
            spec=self.spec,
            profile=self.profile,
            metric=self.metric,
            baseline=self.baseline,
            measurements=final,
            estimates=guessed,
            num_samples=len(self.images),
            has_labels=self.images.labels is not None,
            precision=context.layout.precision,
            method="plain" if context.replay_obstacle else "replay",
            agreement=estimate_agreement(guessed, final),
            notes=notes,
            environment=_environment(passes, context) | self.sweep.executor.environment(),
            passes=passes,
            seconds=seconds,
            recorded=self.sweep.baseline.recorded() if not final or any(item.outputs for item in final) else None,
            reading=reading_of(self.spec, self.model, self.images),
        )

    def close(self) -> None:
        """Release the model and the images."""
        del self.sweep, self.model, self.images, self.held_out


def _loaded(
    spec: RunSpec, data_roots: tuple[Path, ...], progress: Callable[[str], None]
) -> tuple[RunSpec, LoadedModel, ImageSet]:
    """Return the settings with preprocessing and class order chosen by the images, the model, and the images."""
    if spec.data.preparation == "auto":
        choice = choose_preparation(spec, data_roots=data_roots, progress=progress)
        spec = choice.settled
        progress(choice.verdict)
    progress("Loading the model")
    model = load_model(spec.model, progress=progress)
    usual = SOURCES[spec.model.library].task_of(spec.model.name)
    if model.task and spec.model.task == usual:  # that of a recognised checkpoint's architecture
        spec = replace(spec, model=replace(spec.model, task=model.task))
    progress("Loading the images")
    load = partial(
        images_for,
        model,
        task=task_named(spec.model.task),
        num_samples=spec.sensitivity.num_samples,
        seed=spec.sensitivity.seed,
        data_roots=data_roots,
        progress=progress,
    )
    images = load(spec.data)
    choice = choose_class_order(spec, model, images, data_roots=data_roots, progress=progress)
    if choice.chosen is not None:
        spec = choice.spec
        progress(choice.verdict)
        images = images if follow(images, spec.data.class_map) else load(spec.data)
    return spec, model, images


def _as_multilabel(spec: RunSpec) -> RunSpec:
    """Return the settings for images with several labels each; a metric of single labels is dropped."""
    notes, metric = [SEVERAL_NOTE], spec.sensitivity.metric
    if metric is not None and METRICS[metric].task not in ("", MULTILABEL.name):
        notes.append(f"{METRICS[metric].label} is of one class per image, so layers are not ranked by it.")
        metric = None
    return replace(
        spec,
        model=replace(spec.model, task=MULTILABEL.name),
        data=replace(spec.data, chosen_by=(*spec.data.chosen_by, *notes)),
        sensitivity=replace(spec.sensitivity, metric=metric),
    )


def estimate_agreement(
    estimates: Iterable[LayerMeasurement], measurements: Iterable[LayerMeasurement]
) -> dict[str, float]:
    """Return Spearman's rank correlation of estimated and measured divergence, by level, where both exist."""
    estimates = tuple(estimates)
    metric = divergence_among({change.metric for item in estimates for change in item.changes}) or ""
    guessed = {item.key: change.delta for item in estimates if (change := item.change(metric))}
    pairs = grouped(
        (item.level, (guessed[item.key], change.delta))
        for item in measurements
        if item.key in guessed and (change := item.change(metric))
    )
    return {
        f"{level:g}": spearman([first for first, _ in both], [second for _, second in both])
        for level, both in sorted(pairs.items())
        if len(both) >= 3
    }


def _environment(passes: PassSettings, context: MeasurementContext) -> dict[str, str]:
    return _versions(context.device) | {
        "memory_layout": "channels_last" if passes.channels_last else "contiguous",
        "micro_batch": str(passes.micro_batch),
        "precision": context.layout.precision,
        "images_at_once": str(passes.images_at_once),
        "images_in_span": str(passes.images_in_span),
    }


def _versions(device: torch.device) -> dict[str, str]:
    return versions_here() | {"device": str(device), "threads": str(torch.get_num_threads())}
