"""Histograms of layers' weights, inputs or outputs on their quantization grid, with the gradients there.

A BatchNorm can be folded into the layer before it. Source: Jacob et al. 2018, "Quantization and training of neural
networks for efficient integer-arithmetic-only inference", section 3.2.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from senseapp.compat.torch_internals import has_forward_hooks, restored
from senseapp.core.errors import InvalidDataset, MeasurementFailed
from senseapp.core.process import PROCESS_CACHE
from senseapp.data.images import ImageSet, TensorImages
from senseapp.data.load import images_for
from senseapp.measure.bins import HISTOGRAM_CALIBRATION_IMAGES, SUB_BINS, GridBins, bins_of
from senseapp.measure.plan import Layout, lay_out
from senseapp.measure.preparation_search import choose_preparation
from senseapp.networks.network import flags_kept
from senseapp.networks.profile import BATCH_NORMS, profile_model
from senseapp.networks.sources.load import load_model
from senseapp.networks.trace import Call, CallTrace, trace_calls
from senseapp.records.layer_findings import QuantizationHistogram
from senseapp.records.measurement import RunResult
from senseapp.records.profile import LayerProfile, select_layers
from senseapp.records.spec import HistogramSpec, RunSpec
from senseapp.tasks import Task, task_named

Subject = tuple[nn.Module, ImageSet]
"""The network of a run, in ``eval()`` mode, and the images of a histogram."""


def load_subject(
    run: RunSpec, num_images: int, data_roots: tuple[Path, ...], progress: Callable[[str], None]
) -> Subject:
    """Load the model of ``run`` and up to ``num_images`` of its images."""
    progress("Loading the model")
    loaded = load_model(run.model, progress=progress)
    progress("Loading the images")
    images = images_for(
        loaded,
        run.data,
        task=task_named(run.model.task),
        num_samples=num_images,
        seed=run.sensitivity.seed,
        data_roots=data_roots,
    )
    return lay_out(loaded.module, Layout(channels_last=True)), images  # a fifth less time on ResNet-50


Found = dict[str, QuantizationHistogram | MeasurementFailed]
"""The histogram of each layer or the reason why it has none, by name, in the requested order."""


def histogram_of(
    result: RunResult,
    spec: HistogramSpec,
    *,
    data_roots: tuple[Path, ...] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> QuantizationHistogram:
    """Load the model and images of a run, and compute the histogram of one tensor.

    Raises:
        InvalidInput: the layer, the model or the images cannot be used.
        MeasurementFailed: the layer has no finite values.
    """
    (found,) = histograms_of(result, spec, (spec.layer,), data_roots=data_roots, progress=progress).values()
    if isinstance(found, MeasurementFailed):
        raise found
    return found


def histograms_of(
    result: RunResult,
    spec: HistogramSpec,
    names: Sequence[str],
    *,
    data_roots: tuple[Path, ...] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> Found:
    """Load the model and images of a run, and compute histograms of several layers in the same passes.

    If the histogram before used the same model and images, nothing is loaded.

    Raises InvalidInput if a layer, the model or the images cannot be used.
    """
    layers = [_known_layer(result, name) for name in names]
    run, most = result.spec, min(spec.num_images, result.num_samples)
    key = run.model, run.data, most, run.sensitivity.seed, data_roots
    module, images = PROCESS_CACHE.take(key) or load_subject(run, most, data_roots, progress)
    progress(f"Looking at the {spec.tensor} of {names[0] if len(names) == 1 else f'{len(names)} layers'}")
    found = quantization_histograms(module, images, layers, spec, task=task_named(run.model.task))
    PROCESS_CACHE.leave(key, (module, images))
    return found


def _known_layer(result: RunResult, name: str) -> LayerProfile:
    try:
        return result.profile.layer(name)
    except KeyError:
        raise MeasurementFailed(f"This run's model has no layer {name!r}. Choose one of its layers.") from None


def quantization_histograms(
    model: nn.Module, images: ImageSet, layers: Sequence[LayerProfile], spec: HistogramSpec, *, task: Task
) -> Found:
    """Compute histograms of ``layers`` in the same passes; memory does not grow with the number of images.

    The gradient is that of the summed objective over all images. At inputs it is the gradient through this layer only,
    without the part through a shortcut that reads the same input. The model must be in ``eval()`` mode. ``spec.layer``
    is ignored.

    Raises:
        InvalidDataset: there are no images, or no labels for the loss.
        UnsupportedModel: the model returns no output of ``task``.
    """
    if not len(images):
        raise InvalidDataset("A histogram needs at least one image, got none.")
    if spec.objective == "loss" and images.labels is None:
        raise InvalidDataset("The loss needs labels, and these images have none. Back-propagate the output instead.")
    found: Found = {}
    norms: dict[str, nn.Module] = {}
    if spec.fold:
        with torch.no_grad():
            foldable = foldable_norms(trace_calls(model, images.batch(0, 1)), model)
        norms = {layer.name: foldable[layer.name] for layer in layers if layer.name in foldable}
    with norms_folded(model, norms):
        for name, bins in bins_of(model, images, layers, spec, task).items():
            own = replace(spec, layer=name)
            notes = _notes(own, len(images), folded=name in norms)
            found[name] = bins if isinstance(bins, MeasurementFailed) else _record(bins, own, len(images), notes)
    return found


def _notes(spec: HistogramSpec, num_images: int, *, folded: bool) -> tuple[str, ...]:
    notes = []
    if spec.fold and not folded:
        notes.append("No normalization that could be folded follows this layer, so it is seen as it is stored.")
    if spec.tensor != "weights":
        count = min(HISTOGRAM_CALIBRATION_IMAGES, num_images)
        notes.append(f"The grid of the activations was fitted to the first {count} images, as quantization does it.")
    if spec.tensor == "outputs" and folded:
        notes.append(
            "Outputs are those of the layer with its normalisation, before an activation function that follows."
        )
    elif spec.tensor == "outputs":
        notes.append(
            "Outputs are those of the layer itself, before normalisation or an activation function that follows it."
        )
    return tuple(notes)


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


Images = Tensor | tuple[Tensor, Tensor] | ImageSet | Iterable[Tensor | Sequence[Tensor]]
"""Prepared images, (N, C, H, W); a pair with labels, (N,); or batches of either, as a ``DataLoader`` yields."""
Model = nn.Module


def histograms_by_name(
    model: nn.Module, images: Images, patterns: Sequence[str], spec: HistogramSpec, *, task: Task
) -> Found:
    """Compute histograms of the layers whose names match any of ``patterns``, such as ``layer1.*``; none means all.

    At most ``spec.num_images`` of the images are used. ``model`` and its mode are restored. If a weight makes its
    output non-finite, the other layers have histograms without gradients.

    Raises InvalidInput if no layer matches, or the model or the images cannot be used.
    """
    prepared = image_set(images, spec.num_images)
    if not len(prepared):
        raise InvalidDataset("A histogram needs at least one image, got none.")
    with flags_kept(model):
        model.eval().requires_grad_(False)
        moved = _move(prepared, model)
        with torch.no_grad():
            profile = profile_model(model, moved.batch(0, 1), task=task, finite=spec.objective != "none")
        return quantization_histograms(model, moved, select_layers(profile, patterns), spec, task=task)


def histograms_of_model(
    run: RunSpec, spec: HistogramSpec, patterns: Sequence[str], *, progress: Callable[[str], None] = lambda _: None
) -> Found:
    """Load the model and images that ``run`` names, and compute histograms as :func:`histograms_by_name` does.

    Raises InvalidInput if no layer matches, or the model or the images cannot be used.
    """
    if run.data.preparation == "auto":
        run = choose_preparation(run, progress=progress).spec
    module, images = load_subject(run, spec.num_images, (), progress)
    progress(f"Looking at the {spec.tensor}")
    return histograms_by_name(module, images, patterns, spec, task=task_named(run.model.task))


def image_set(images: Images, most: int) -> ImageSet:
    """Return up to ``most`` of ``images`` as one set.

    Raises InvalidDataset if they are not images, or the number of labels differs.
    """
    if isinstance(images, ImageSet):
        return images.subset(range(min(most, len(images))))
    pairs = [images] if isinstance(images, (Tensor, tuple)) else images
    taken: list[tuple[Tensor, Tensor | None]] = []
    for pair in pairs:
        values, labels = (pair, None) if isinstance(pair, Tensor) else (pair[0], pair[1] if len(pair) > 1 else None)
        if not isinstance(values, Tensor) or values.dim() < 2 or (labels is not None and len(labels) != len(values)):
            raise InvalidDataset(
                "Images must be a tensor (N, C, H, W), a pair of it and N labels, or batches of either, got "
                f"{_shape(values)}{'' if labels is None else f' with {_shape(labels)} as labels'}."
            )
        taken.append((values, labels))
        if sum(len(each) for each, _ in taken) >= most:
            break
    if not taken:
        raise InvalidDataset("A histogram needs at least one image, got none.")
    known = [labels for _, labels in taken if labels is not None]
    labels = torch.cat(known)[:most] if len(known) == len(taken) else None
    return TensorImages(torch.cat([values for values, _ in taken])[:most], labels)


def _shape(value: object) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _move(images: ImageSet, model: nn.Module) -> ImageSet:
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    if device.type == "cpu" and not isinstance(images, TensorImages):
        return images
    labels = images.labels.to(device) if isinstance(images.labels, Tensor) else images.labels
    return TensorImages(images.batch(0, len(images)).to(device), labels)


_FOLDABLE = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
"""Layer types, without subclasses, that a BatchNorm can be folded into."""


def foldable_norms(trace: CallTrace, model: nn.Module) -> dict[str, nn.Module]:
    """Return the BatchNorms that can be folded into the layer before them, by the name of that layer.

    They may have an activation inside. In the trace, layer and norm are each called once, the norm is called right
    after the layer with its output tensor, no other module reads that tensor, and no other module reads the layer's
    weight or bias.
    """
    times = Counter(call.module for call in trace.calls)
    found: dict[str, Any] = {}
    for reader in (call for call in trace.calls if call.source >= 0):
        call = trace.calls[reader.source]
        # The norm itself must be the next call, not a block that contains it: outputs of layers are examined per block.
        if call.after != reader.index or call.last_needed > reader.end:
            continue
        if times[call.module] + times[reader.module] > 2:
            continue
        layer, norm = model.get_submodule(call.module), model.get_submodule(reader.module)
        is_plain = isinstance(norm, BATCH_NORMS) and norm.affine and norm.running_var is not None
        if is_plain and not has_forward_hooks(norm) and _reads_alone(layer, call, trace):
            found[call.module] = norm
    return found


def _reads_alone(layer: nn.Module, call: Call, trace: CallTrace) -> bool:
    if (
        type(layer) not in _FOLDABLE
        or "weight" not in dict(layer.named_parameters(recurse=False))
        or has_forward_hooks(layer)
    ):
        return False
    uses = [trace.uses.get(f"{call.module}.{name}") for name, _ in layer.named_parameters()]  # tied: first name
    return all(use is not None and use.readers == {call.index} for use in uses)


@contextmanager
def norms_folded(model: nn.Module, norms: Mapping[str, nn.Module]) -> Iterator[None]:
    """Fold ``norms`` into the layers of these names inside the block, see :func:`foldable_norms`.

    They are the identity there, but for an activation inside.
    """
    with restored([*norms.values(), *(model.get_submodule(name) for name in norms)]):
        for name, norm in norms.items():
            _fold(model.get_submodule(name), norm)
        yield


def _fold(layer: Any, norm: Any) -> None:
    with torch.no_grad():
        statistics = norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
        folded = fuse_conv_bn_weights(layer.weight, layer.bias, *statistics)
        layer.weight, layer.bias = (each.requires_grad_(False) for each in folded)
        norm.weight = nn.Parameter(torch.ones_like(norm.weight), requires_grad=False)
        norm.bias = nn.Parameter(torch.zeros_like(norm.bias), requires_grad=False)
        norm.running_mean = torch.zeros_like(norm.running_mean)
        norm.running_var = torch.full_like(norm.running_var, 1 - norm.eps)
