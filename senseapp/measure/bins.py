"""Bins of layers' weights, inputs or outputs on their quantization grids, filled in the same passes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from senseapp.compressions.quantization import QuantizationGranularity
from senseapp.compressions.quantization.activations import MseObserver
from senseapp.compressions.quantization.grid import (
    affine_of,
    extremes_of,
    fake_quantize_input,
    in_memory_order,
    scale_of,
)
from senseapp.core.errors import MeasurementFailed
from senseapp.data.images import ImageSet
from senseapp.measure.plan import micro_batches
from senseapp.measure.quick.recorder import Calls, LayerCall, Recorder
from senseapp.metrics.predictions import tensors_in
from senseapp.networks.profile import CONVOLUTIONS
from senseapp.records.profile import LayerProfile
from senseapp.records.spec import HistogramSpec
from senseapp.tasks import Task

SUB_BINS = 16
"""Bins per cell: 4,096 for 8 bits, for any number of values."""

_CHUNK = 2**18  # values per step, which bounds the memory of the index


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedGrid:
    """A grid laid over a tensor: place = value / scale + zero_point, of which 0 to cells − 1 are on the grid.

    ``scale`` and ``zero_point`` are broadcastable to the tensor.
    """

    cells: int
    scale: Tensor
    zero_point: Tensor

    @classmethod
    def of_weight(cls, weight: Tensor, *, bits: int, per_channel: bool, channel_axis: int = 0) -> Self:
        """Lay the symmetric grid that quantization uses over ``weight``, as in :func:`scale_of`."""
        granularity: QuantizationGranularity = "channel" if per_channel else "tensor"
        scale = scale_of(weight, bits=bits, granularity=granularity, channel_axis=channel_axis)
        largest = 2 ** (bits - 1) - 1
        return cls(cells=2 * largest + 1, scale=scale, zero_point=torch.full_like(scale, float(largest)))

    @classmethod
    def of_ranges(cls, lows: Tensor, highs: Tensor, *, bits: int) -> Self:
        """Lay affine grids over the ranges from ``lows`` to ``highs``, as in :func:`affine_of`."""
        ends = zip(lows.flatten().tolist(), highs.flatten().tolist(), strict=True)
        pairs = torch.tensor([affine_of(low, high, bits=bits) for low, high in ends], dtype=torch.float32)
        return cls(cells=2**bits, scale=pairs[:, 0].reshape(lows.shape), zero_point=pairs[:, 1].reshape(lows.shape))

    @property
    def single_scale(self) -> float:
        """The step, if it is the same for all values; else NaN."""
        return float(self.scale) if self.scale.numel() == 1 else math.nan

    @property
    def zero_cell(self) -> int:
        """The cell of value 0; the middle one over channels if they differ."""
        return int(self.zero_point.flatten().median())

    def places(self, values: Tensor) -> Tensor:
        """Return the positions of ``values`` on the grid, in steps; float32, shape of ``values``."""
        return values.float() / self.scale + self.zero_point


class GridBins:
    """Counts, gradient sums and places on a grid, all of fixed size, in float64."""

    def __init__(self, grid: PlacedGrid) -> None:
        self.grid = grid
        self.counts, self.gradient_sums, self.gradient_magnitudes = torch.zeros(
            3, grid.cells * SUB_BINS, dtype=torch.float64
        )
        self.place_sums = torch.zeros(grid.cells, dtype=torch.float64)
        self.zeros = self.clamped = 0.0
        self.low, self.high = math.inf, -math.inf

    def add(self, values: Tensor, gradients: Tensor) -> None:
        """Add values and the objective's gradient at them, of equal shape, to the bins; neither is stored.

        They are counted on the processor: on cards, sums of weighted counts depend on timing.
        """
        values, gradients = values.cpu(), gradients.cpu()
        low, high = extremes_of(values)
        self.low, self.high = min(self.low, low), max(self.high, high)
        places = self.grid.places(values)
        self.zeros += float(((places + 0.5).floor() == self.grid.zero_point).count_nonzero())
        flat = zip(
            *(torch.split(in_memory_order(each, like=places), _CHUNK) for each in (places, gradients)), strict=True
        )
        for place, gradient in flat:
            self._add(place, gradient)

    def _add(self, places: Tensor, gradients: Tensor) -> None:
        cells, bins, gradients = self.grid.cells, len(self.counts), gradients.double()
        index = places.add(0.5).mul_(SUB_BINS).floor_()
        self.clamped += float(((index < 0) | (index >= bins)).count_nonzero())
        index = index.clamp_(0, bins - 1).long()
        self.counts += torch.bincount(index, minlength=bins)
        self.gradient_sums += torch.bincount(index, gradients, minlength=bins)
        self.gradient_magnitudes += torch.bincount(index, gradients.abs(), minlength=bins)
        on_grid = places.clamp(0, cells - 1).double()
        self.place_sums += torch.bincount(index.div_(SUB_BINS, rounding_mode="floor"), on_grid, minlength=cells)


HISTOGRAM_CALIBRATION_IMAGES = 16
"""Number of images that the grids of activations are fitted to."""
_BATCH = 8  # 16 is no faster on ResNet-50, and holds twice the activations
_TOGETHER = 16  # layers whose activations of one batch are held at once: 1 GB in a ResNet-50
_ONE = {"weights": "weight", "activations": "input", "outputs": "output"}

Bins = dict[str, GridBins | MeasurementFailed]


def bins_of(
    model: nn.Module, images: ImageSet, layers: Sequence[LayerProfile], spec: HistogramSpec, task: Task
) -> Bins:
    """Return the filled bins of each layer by its name, or why it has none."""
    passes = _Passes(model, images, spec, task)
    if spec.tensor == "weights":
        return _weight_bins(passes, layers)
    modules = [(layer.name, model.get_submodule(layer.name)) for layer in layers]
    found: Bins = {}
    for first in range(0, len(modules), _TOGETHER):
        found |= _activation_bins(passes, dict(modules[first : first + _TOGETHER]))
    return found


@dataclass(frozen=True, slots=True)
class _Passes:
    """The forward passes of a histogram, and its objective."""

    model: nn.Module
    images: ImageSet
    spec: HistogramSpec
    task: Task

    def batches(self, most: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield start and stop of each batch, of ``most`` images in all."""
        return micro_batches(0, min(len(self.images), most or len(self.images)), _BATCH)

    def objective(self, raw: Any, start: int, stop: int) -> Tensor:
        """Return the objective of the outputs ``raw`` of images ``start`` to ``stop``."""
        labels, spec = self.images.labels, self.spec
        self.task.check_output(raw, stop - start)
        output = self.task.output(raw)
        if spec.objective == "loss" and labels is not None:
            return self.task.loss(output, labels[start:stop])
        return output.flatten(1).mean(dim=1).sum() if spec.objective == "mean" else self.task.score(output)


def _weight_bins(passes: _Passes, layers: Sequence[LayerProfile]) -> Bins:
    spec, found = passes.spec, dict[str, GridBins | MeasurementFailed]()
    weights = {layer.name: passes.model.get_parameter(layer.parameter) for layer in layers}
    finite = {name: weight for name, weight in weights.items() if _is_finite(weight)}
    slopes = {name: torch.zeros_like(weight) for name, weight in finite.items()}
    if spec.objective != "none":
        slopes = _summed_gradients(passes, finite)
    for layer in layers:
        if layer.name not in finite:
            found[layer.name] = _not_finite(layer.name, spec)
        elif layer.name not in slopes:
            unused = f"The weight of {layer.name} was not used on these images. Choose another layer."
            found[layer.name] = MeasurementFailed(unused)
        else:
            weight, axis = finite[layer.name].detach().cpu(), layer.channel_axis
            grid = PlacedGrid.of_weight(weight, bits=spec.bits, per_channel=spec.per_channel, channel_axis=axis)
            found[layer.name] = bins = GridBins(grid)
            bins.add(weight, slopes[layer.name])
    return found


def _summed_gradients(passes: _Passes, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradient at each weight summed over all images; unused weights are absent."""
    sums: dict[str, Tensor] = {}
    for weight in weights.values():
        weight.requires_grad_()
    try:
        for start, stop in passes.batches() if weights else ():
            with torch.enable_grad():
                objective = passes.objective(passes.model(passes.images.batch(start, stop)), start, stop)
            if not objective.requires_grad:
                continue
            gradients = torch.autograd.grad(objective, list(weights.values()), allow_unused=True)
            for name, gradient in zip(weights, gradients, strict=True):
                if gradient is not None:
                    sums[name] = sums[name].add_(gradient) if name in sums else gradient.clone()
    finally:
        for weight in weights.values():
            weight.requires_grad_(False)
    return sums


def _activation_bins(passes: _Passes, modules: dict[str, nn.Module]) -> Bins:
    """Fit the grids to the first images, then bin the values and gradients of all of them."""
    spec, found = passes.spec, dict[str, GridBins | MeasurementFailed]()
    grids = {name: _GridFitting(module, spec) for name, module in modules.items()}
    recorder = Recorder(modules, inputs=spec.tensor == "activations")
    for start, stop in passes.batches(HISTOGRAM_CALIBRATION_IMAGES):
        with torch.no_grad():
            _, calls = recorder.run(passes.model, passes.images.batch(start, stop))
        for name, module in modules.items():
            seen = [_values(call, module, spec) for call in calls.get(name, ())]
            if not seen:
                did_not = f"{name} did not run on these images, so it has no {_ONE[spec.tensor]} to look at."
                found.setdefault(name, MeasurementFailed(did_not))
            elif all(map(_is_finite, seen)):
                grids[name].update(seen[0])
            else:
                found.setdefault(name, _not_finite(name, spec))
    bins = {name: GridBins(grids[name].grid()) for name in modules if name not in found}
    recorder = Recorder({name: modules[name] for name in bins}, inputs=spec.tensor == "activations")
    for start, stop in passes.batches() if bins else ():
        raw, calls = recorder.run(passes.model, passes.images.batch(start, stop))

        def add(name: str, calls: Calls = calls) -> None:
            for call in calls.pop(name):
                values, gradients = _values(call, modules[name], spec), call.gradients
                if _is_finite(values):
                    bins[name].add(values, gradients[0] if gradients else torch.zeros_like(values))
                else:
                    found.setdefault(name, _not_finite(name, spec))

        objective = passes.objective(raw, start, stop)
        if spec.objective != "none":
            recorder.backward(objective, [torch.ones_like(objective)], dict(calls), add)
        for name in list(calls):  # on which the objective does not depend
            add(name)
    return {name: found.get(name) or bins[name] for name in modules}


def _values(call: LayerCall, module: nn.Module, spec: HistogramSpec) -> Tensor:
    """Return the input or output of a call on the CPU, as it was at the call."""
    if spec.tensor == "activations":
        return cast("Tensor", call.args[0]).cpu()
    with torch.no_grad():
        return (next(tensors_in(module(*call.args, **call.kwargs))) if call.output_overwritten else call.output).cpu()


class _GridFitting:
    """Fits the grid to activations, batch by batch: per tensor the range of least error, per channel the extremes."""

    def __init__(self, module: nn.Module, spec: HistogramSpec) -> None:
        self._module, self._spec = module, spec
        self._observer = MseObserver()
        self._ends: tuple[Tensor, Tensor] | None = None

    def update(self, values: Tensor) -> None:
        """Add the values of one batch."""
        if not self._spec.per_channel:
            self._observer.update(values)
            return
        axis = 1 if isinstance(self._module, CONVOLUTIONS) else values.dim() - 1
        others = [each for each in range(values.dim()) if each != axis]
        low, high = values.amin(dim=others, keepdim=True), values.amax(dim=others, keepdim=True)
        known = self._ends or (low, high)
        self._ends = torch.minimum(known[0], low), torch.maximum(known[1], high)

    def grid(self) -> PlacedGrid:
        """Return the grid fitted to all batches."""
        bits = self._spec.bits
        if self._ends is not None:
            return PlacedGrid.of_ranges(*self._ends, bits=bits)
        found = self._observer.value_range(lambda data, low, high: fake_quantize_input(data, low, high, bits=bits))
        low, high = found or (0.0, 0.0)
        return PlacedGrid.of_ranges(torch.tensor([low]), torch.tensor([high]), bits=bits)


def _is_finite(values: Tensor) -> bool:
    return all(map(math.isfinite, extremes_of(values.detach())))  # a tensor with NaN has NaN as extreme


def _not_finite(layer: str, spec: HistogramSpec) -> MeasurementFailed:
    what = _ONE[spec.tensor]
    return MeasurementFailed(f"The {what} of {layer} holds values that are not finite, so it has no histogram.")
