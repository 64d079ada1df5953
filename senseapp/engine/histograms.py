"""Histograms of one layer's weights or inputs on their quantization grid, with the gradients there."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from senseapp.compressions.quantization.activations import MseObserver
from senseapp.compressions.quantization.grid import extremes_of, fake_quantize_input
from senseapp.core.errors import InvalidDataset, MeasurementFailed
from senseapp.core.process import PROCESS_CACHE
from senseapp.data.images import ImageSet
from senseapp.data.load import load_images
from senseapp.engine.folding import fold_following_norm, norms_folded_behind
from senseapp.engine.grid_bins import SUB_BINS, GridBins, PlacedGrid
from senseapp.engine.layout import Layout, lay_out
from senseapp.models.load import load_model
from senseapp.records.histogram import QuantizationHistogram
from senseapp.records.measurement import SensitivityResult
from senseapp.records.profile import LayerProfile
from senseapp.records.spec import HistogramSpec
from senseapp.tasks import CLASSIFICATION, Task, task_named

Subject = tuple[nn.Module, ImageSet]
"""The network of a run, in ``eval()`` mode, and the images that a histogram looks at."""


@contextmanager
def subject_of(
    result: SensitivityResult,
    spec: HistogramSpec,
    *,
    data_roots: tuple[Path, ...],
    progress: Callable[[str], None],
) -> Iterator[Subject]:
    """Lend what the histogram of ``spec`` looks at; where the one before looked at the same, nothing is loaded.

    Raises:
        InvalidInput: the model or the images cannot be used.
    """
    key = result.spec.model, result.spec.data, spec.num_images, result.num_samples, result.spec.sensitivity.seed
    subject = PROCESS_CACHE.take((key, data_roots)) or _load(result, spec, data_roots, progress)
    yield subject
    if not spec.fold:  # which leaves another network
        PROCESS_CACHE.leave((key, data_roots), subject)


def _load(
    result: SensitivityResult, spec: HistogramSpec, data_roots: tuple[Path, ...], progress: Callable[[str], None]
) -> Subject:
    progress("Loading the model")
    loaded = load_model(result.spec.model, progress=progress)
    progress("Loading the images")
    images = load_images(
        result.spec.data,
        loaded.preprocessing,
        num_classes=loaded.num_classes,
        task=task_named(result.spec.model.task),
        num_samples=min(spec.num_images, result.num_samples),
        seed=result.spec.sensitivity.seed,
        data_roots=data_roots,
        class_names=loaded.class_names,
        with_labels=not loaded.fresh_head,
    )
    module = lay_out(loaded.module, Layout(channels_last=True))  # a fifth less time on ResNet-50
    return module, images


_BATCH = 8  # 16 is no faster on ResNet-50, and holds twice the activations
_CALIBRATION_IMAGES = 16
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NOT_FOLDED = "No BatchNorm that could be folded follows this layer, so its weights are seen as they are stored."
_CALIBRATED = "The grid of the activations was fitted to the first {count} images, as quantization does it."


def histogram_of(
    result: SensitivityResult,
    spec: HistogramSpec,
    *,
    data_roots: tuple[Path, ...] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> QuantizationHistogram:
    """Load the model and images of a run, and look at one tensor of it.

    Raises:
        InvalidInput: the layer, the model or the images cannot be used.
        MeasurementFailed: the layer has no finite values to look at.
    """
    layer = _known_layer(result, spec)
    with subject_of(result, spec, data_roots=data_roots, progress=progress) as (module, images):
        progress(f"Looking at the {spec.tensor} of {spec.layer}")
        return quantization_histogram(module, images, layer, spec, task=task_named(result.spec.model.task))


def _known_layer(result: SensitivityResult, spec: HistogramSpec) -> LayerProfile:
    try:
        return result.profile.layer(spec.layer)
    except KeyError:
        raise MeasurementFailed(f"This run's model has no layer {spec.layer!r}. Choose one of its layers.") from None


def quantization_histogram(
    model: nn.Module,
    images: ImageSet,
    layer: LayerProfile,
    spec: HistogramSpec,
    *,
    task: Task = CLASSIFICATION,
) -> QuantizationHistogram:
    """Look at one tensor of ``model`` on its quantization grid; memory does not grow with the number of images.

    The gradient is that of the summed objective over all images, through this layer only: of an input that a shortcut
    reads too, what the shortcut carries does not count. The model is in ``eval()`` mode, and used up by ``spec.fold``.

    Raises:
        InvalidDataset: there are no images, or no labels for the loss.
        MeasurementFailed: the layer never ran on these images, or holds values that are not finite.
        UnsupportedModel: the model returns no output of ``task``.
    """
    if not len(images):
        raise InvalidDataset("A histogram needs at least one image, got none.")
    if spec.objective == "loss" and images.labels is None:
        raise InvalidDataset("The loss needs labels, and these images have none. Back-propagate the output instead.")
    module, notes = model.get_submodule(layer.name), []
    if spec.fold and not fold_following_norm(model, module, images.batch(0, min(2, len(images)))):
        notes.append(_NOT_FOLDED)
    # What only gradients pass through is folded where there are enough passes to gain by it.
    worthwhile = spec.objective != "none" and len(images) > _BATCH
    with norms_folded_behind(model, module, images.batch(0, 1)) if worthwhile else nullcontext():
        if spec.tensor == "weights":
            bins = _weight_bins(model, images, layer, spec, task)
        else:
            bins = _input_bins(model, module, images, spec, task)
    if spec.tensor == "activations":
        notes.append(_CALIBRATED.format(count=min(_CALIBRATION_IMAGES, len(images))))
    return _record(bins, spec, len(images), tuple(notes))


def _weight_bins(model: nn.Module, images: ImageSet, layer: LayerProfile, spec: HistogramSpec, task: Task) -> GridBins:
    weight = model.get_parameter(layer.parameter)
    _require_finite(weight, layer.name, what="weight")
    grid = PlacedGrid.of_weight(weight, bits=spec.bits, per_channel=spec.per_channel, channel_axis=layer.channel_axis)
    bins = GridBins(grid)
    if spec.objective == "none":
        bins.add(weight.detach(), torch.zeros_like(weight))
        return bins
    gradient: Tensor | None = None
    weight.requires_grad_()
    for start in range(0, len(images), _BATCH):
        (found,) = _gradients(_objective(model, images, start, spec, task), [weight])
        if found is not None:
            gradient = found if gradient is None else gradient.add_(found)
    weight.requires_grad_(False)
    if gradient is None:
        raise MeasurementFailed(f"The weight of {layer.name} was not used on these images. Choose another layer.")
    bins.add(weight.detach(), gradient)
    return bins


def _input_bins(model: nn.Module, module: nn.Module, images: ImageSet, spec: HistogramSpec, task: Task) -> GridBins:
    batches = (_inputs_of_batch(model, module, images, start, spec, task) for start in range(0, len(images), _BATCH))
    first = deque(islice(batches, math.ceil(_CALIBRATION_IMAGES / _BATCH)))
    if not all(first):
        raise MeasurementFailed(f"{spec.layer} did not run on these images, so it has no input to look at.")
    bins = GridBins(_input_grid(module, [inputs[0][0] for inputs in first], spec))
    for inputs in chain((first.popleft() for _ in range(len(first))), batches):
        for values, gradient in inputs:
            bins.add(values, gradient)
    return bins


def _inputs_of_batch(
    model: nn.Module, module: nn.Module, images: ImageSet, start: int, spec: HistogramSpec, task: Task
) -> list[tuple[Tensor, Tensor]]:
    """Return the layer's inputs in one batch, a pair for each of its calls, with the objective's gradient there."""
    with _branched_inputs(module) as leaves:
        objective = _objective(model, images, start, spec, task)
    for leaf in leaves:
        _require_finite(leaf, spec.layer, what="input")
    gradients = _gradients(objective, leaves)
    return [
        (leaf.detach(), torch.zeros_like(leaf) if gradient is None else gradient)
        for leaf, gradient in zip(leaves, gradients, strict=True)
    ]


def _gradients(objective: Tensor, inputs: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """Return the gradient at each of ``inputs``, None where it does not decide anything."""
    if not inputs or not objective.requires_grad:
        return [None] * len(inputs)
    return torch.autograd.grad(objective, inputs, allow_unused=True)


def _objective(model: nn.Module, images: ImageSet, start: int, spec: HistogramSpec, task: Task) -> Tensor:
    stop = min(start + _BATCH, len(images))
    with torch.set_grad_enabled(spec.objective != "none"):
        raw = model(images.batch(start, stop))
        task.check_output(raw, stop - start)
        if spec.objective == "loss" and images.labels is not None:
            return task.loss(task.output(raw), images.labels[start:stop])
        return task.score(task.output(raw))


@contextmanager
def _branched_inputs(module: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the inputs of ``module`` as leaves, and let the graph begin at them."""
    leaves: list[Tensor] = []

    def branch(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        leaf = args[0].detach().clone().requires_grad_()  # what comes later may write into the input itself
        leaves.append(leaf)
        return (leaf, *args[1:])

    handle = module.register_forward_pre_hook(branch)
    try:
        yield leaves
    finally:
        handle.remove()


def _input_grid(module: nn.Module, calibration: Sequence[Tensor], spec: HistogramSpec) -> PlacedGrid:
    """Fit the grid to inputs of the layer: per tensor the range of least error, per channel their extremes."""
    if spec.per_channel:
        axis = 1 if isinstance(module, _CONVOLUTIONS) else calibration[0].dim() - 1
        others = [each for each in range(calibration[0].dim()) if each != axis]
        lows = torch.stack([values.amin(dim=others, keepdim=True) for values in calibration])
        highs = torch.stack([values.amax(dim=others, keepdim=True) for values in calibration])
        return PlacedGrid.of_ranges(lows.amin(dim=0), highs.amax(dim=0), bits=spec.bits)
    observer = MseObserver()
    for values in calibration:
        observer.update(values)
    found = observer.value_range(lambda data, low, high: fake_quantize_input(data, low, high, bits=spec.bits))
    low, high = found or (0.0, 0.0)
    return PlacedGrid.of_ranges(torch.tensor([low]), torch.tensor([high]), bits=spec.bits)


def _require_finite(values: Tensor, layer: str, *, what: str) -> None:
    if not all(map(math.isfinite, extremes_of(values.detach()))):  # NaN is the extreme of what holds one
        raise MeasurementFailed(f"The {what} of {layer} holds values that are not finite, so it has no histogram.")


def _record(bins: GridBins, spec: HistogramSpec, num_images: int, notes: tuple[str, ...]) -> QuantizationHistogram:
    return QuantizationHistogram(
        spec=spec,
        cells=bins.grid.cells,
        sub_bins=SUB_BINS,
        zero_cell=bins.grid.zero_cell,
        scale=bins.grid.single_scale,
        low=bins.low,
        high=bins.high,
        counts=tuple(bins.counts.tolist()),
        gradient_sums=tuple(bins.gradient_sums.tolist()),
        gradient_magnitudes=tuple(bins.gradient_magnitudes.tolist()),
        place_sums=tuple(bins.place_sums.tolist()),
        zeros=bins.zeros,
        clamped=bins.clamped,
        num_images=num_images,
        notes=notes,
    )
