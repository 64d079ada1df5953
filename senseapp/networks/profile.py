"""The size of a network and its compressible layers, from one traced pass, and weights that are not finite."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from senseapp.core.errors import UnsupportedModel, first_line_of
from senseapp.core.texts import first_names
from senseapp.metrics.predictions import tensors_in
from senseapp.networks.trace import CallTrace, trace_calls
from senseapp.records.profile import LayerProfile, ModelProfile, UnlistedWeights
from senseapp.tasks import Task

_STATISTICS = ("running_mean", "running_var")


def check_weights(model: nn.Module, trace: CallTrace) -> None:
    """Refuse a network whose output in the traced pass is not finite because of a weight of a layer that ran.

    Raises UnsupportedModel, with the name of the first such layer in execution order, and its fault.
    """
    if all(map(is_finite, tensors_in(trace.output))):
        return
    used = (*(call.module for call in trace.calls), *(name.rpartition(".")[0] for name in trace.uses))
    faults = [(name, fault) for name in dict.fromkeys(used) for fault in _faults(model.get_submodule(name))]
    if not faults:
        return
    layer, fault = faults[0]
    others = {name for name, _ in faults} - {layer}
    more = f" So do {len(others)} more." if len(others) > 1 else " So does one more." if others else ""
    kind = type(model.get_submodule(layer)).__name__
    raise UnsupportedModel(
        f"The layer {layer or 'at the top'} ({kind}) holds {fault}, so the network returns no numbers.{more} Bring "
        "weights from before training went wrong, or train again."
    )


def _faults(module: nn.Module) -> Iterator[str]:
    """Yield the faults of the module's own weights and, for a norm, of its statistics."""
    own = dict(module.named_parameters(recurse=False))
    buffers = dict(module.named_buffers(recurse=False))
    for name, values in (own | {name: buffers[name] for name in _STATISTICS if name in buffers}).items():
        if not is_finite(values):
            yield f"NaN or infinite values ({name})"
    variance, eps = buffers.get("running_var"), float(getattr(module, "eps", 0.0))
    if variance is not None and variance.numel() and float(variance.amin()) + eps <= 0:
        yield f"a variance that is not above zero (running_var, {float(variance.amin()):.3g}, eps {eps:g})"


def is_finite(values: Tensor) -> bool:
    """Return whether all values are finite, with one device transfer; True on the meta device, which has no values.

    A tensor with NaN has NaN as its minimum and maximum.
    """
    if values.is_meta or not values.numel() or not values.is_floating_point():
        return True
    values = values.float() if values.element_size() == 1 else values.detach()  # 8-bit floats have no arithmetic
    return bool(torch.stack(torch.aminmax(values)).isfinite().all())


_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *_TRANSPOSED)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def compressible_weights(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield (layer name, its module, name of the weight attribute) in the order of ``named_modules``.

    Compressible are convolutions, transposed convolutions and linear layers, with subclasses, and the joint
    query-key-value projection of ``nn.MultiheadAttention``, which is a parameter without a module. A layer whose weight
    is computed (``torch.nn.utils.parametrize``) is included; its attribute is no :class:`~torch.nn.Parameter`, and
    compressions report why they skip it.
    """
    for name, module in model.named_modules():
        if isinstance(module, (*CONVOLUTIONS, nn.Linear)):
            yield name, module, "weight"
        elif isinstance(module, nn.MultiheadAttention) and isinstance(module.in_proj_weight, nn.Parameter):
            yield name, module, "in_proj_weight"


def unlisted_weights(model: nn.Module, trace: CallTrace) -> tuple[UnlistedWeights, ...]:
    """Return the weights that are used outside of a compressible layer, by the module that owns them.

    Excluded are parameters of listed layers and norms (biases, gains, inputs of a parametrization), biases, and vectors
    of less than a thousandth of all parameters, such as scales and class tokens.
    """
    listed = {id(getattr(module, attribute)) for _, module, attribute in compressible_weights(model)}
    layers = [name for name, module, attribute in compressible_weights(model) if attribute == "weight"]
    total = sum(parameter.numel() for parameter in model.parameters())
    found: dict[str, dict[str, nn.Parameter]] = {}
    for name, parameter in model.named_parameters():  # without repetition of tied ones
        owner, _, attribute = name.rpartition(".")
        is_of_layer = id(parameter) in listed or any(f"{owner}.".startswith(f"{layer}.") for layer in layers)
        if is_of_layer or "norm" in _type_of(model, owner).lower():
            continue
        is_matrix = sum(length > 1 for length in parameter.shape) >= 2
        if is_matrix or ("bias" not in attribute and parameter.numel() >= 0.001 * total):
            found.setdefault(owner, {})[name] = parameter
    return tuple(
        UnlistedWeights(
            module=owner,
            module_type=_type_of(model, owner),
            parameters=tuple(name.rpartition(".")[2] for name in weights),
            num_params=sum(parameter.numel() for parameter in weights.values()),
            macs=sum(use.macs for name in weights if (use := trace.uses.get(name))) // trace.batch_size,
        )
        for owner, weights in found.items()
    )


def _type_of(model: nn.Module, name: str) -> str:
    return type(model.get_submodule(name)).__name__


def profile_model(
    module: nn.Module,
    sample: Tensor,
    *,
    trace: CallTrace | None = None,
    task: Task | None = None,
    finite: bool = True,
    title: str = "",
    pretrained: bool = True,
    notes: tuple[str, ...] = (),
) -> ModelProfile:
    """Describe ``module`` from ``trace``, or from one forward pass of ``sample``, float32 (N, C, H, W).

    Raises:
        UnsupportedModel: it fails on the sample, what it returns is not an output of ``task``, where one is given, or,
            unless ``finite`` is false, :func:`~senseapp.networks.profile.check_weights` finds that it is not
            finite because of a weight.
    """
    trace = trace or watched_pass(module, sample)
    if finite:
        check_weights(module, trace)
    if task is not None:
        task.check_output(trace.output, len(sample))
    layers = _layers(module, trace)
    tensors = [*module.parameters(), *module.buffers()]
    return ModelProfile(
        title=title,
        layers=layers,
        num_params=sum(parameter.numel() for parameter in module.parameters()),
        macs=trace.macs // trace.batch_size,
        num_bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        input_shape=tuple(sample.shape[1:]),
        num_classes=0 if task is None else task.num_outputs(task.output(trace.output)),
        pretrained=pretrained,
        notes=notes,
        unlisted=unlisted_weights(module, trace),
        flow=trace.flow,
    )


def watched_pass(module: nn.Module, sample: Any) -> CallTrace:
    """Trace one pass of ``module`` on ``sample``: float32 (N, C, H, W), or the module's arguments."""
    try:
        return trace_calls(module, sample)
    except Exception as error:  # an unknown forward may raise anything
        shapes = " and ".join(str(tuple(tensor.shape[1:])) for tensor in tensors_in(sample))
        raise UnsupportedModel(
            f"The model cannot take an image of shape {shapes}: {first_line_of(error)}. "
            "Set the image size and the number of channels that it was made for."
        ) from error


def _layers(model: nn.Module, trace: CallTrace) -> tuple[LayerProfile, ...]:
    first_calls = {call.module: call for call in reversed(trace.calls)}
    shared = {id(parameter): name for name, parameter in model.named_parameters()}
    first_names: dict[str, str] = {}  # first name of a weight, by its name in this layer
    found: list[tuple[float, LayerProfile]] = []
    for name, module, attribute in compressible_weights(model):
        weight: Tensor = getattr(module, attribute)
        parameter = f"{name}.{attribute}" if name else attribute
        first_names[parameter] = shared.get(id(weight), parameter)
        use = trace.uses.get(first_names[parameter])
        prefix = f"{name}." if name else ""
        uses = [use] if use else [each for inner, each in trace.uses.items() if inner.startswith(prefix)]
        own_macs = 0 if isinstance(module, nn.MultiheadAttention) else trace.other_macs.get(name, 0)
        call = first_calls.get(name)
        first_event = trace.first_event(frozenset([name])) if use is None or call else use.first_event
        profile = LayerProfile(
            name=name,
            layer_type=type(module).__name__,
            parameter=parameter,
            weight_shape=tuple(weight.shape),
            num_params=weight.numel(),
            macs=(sum(each.macs for each in uses) + own_macs) // trace.batch_size,
            input_shape=call.input_shape[1:] if call else (),
            output_shape=call.output_shape[1:] if call else (),
            channel_axis=1 if isinstance(module, _TRANSPOSED) else 0,
            runs=first_event is not None,
            keeps_zeros=all(each.keeps_zeros for each in uses),
        )
        by_others = bool(found) and first_names[parameter] in trace.used_by_others
        place = found[-1][0] if by_others else first_event  # only its place in the definition is known
        found.append((torch.inf if place is None else place, profile))
    found.sort(key=lambda pair: pair[0])  # stable: layers that never ran keep their order, at the end
    counted: set[str] = set()
    layers = []
    for order, (_, profile) in enumerate(found):
        weight_name = first_names[profile.parameter]
        macs = 0 if weight_name in counted else profile.macs  # all calls with a shared weight count at its first layer
        counted.add(weight_name)
        layers.append(replace(profile, order=order, macs=macs))
    return tuple(layers)


def has_idle_layers(model: nn.Module, trace: CallTrace) -> bool:
    """Return whether the traced pass does not use some layer, as a network may that treats images differently."""
    return not all(layer.runs for layer in _layers(model, trace))


def others_note(layers: Iterable[LayerProfile], trace: CallTrace) -> str:
    """Return the sentence on those of ``layers`` that only other images use; empty if there is none."""
    names = [layer.name for layer in layers if layer.parameter in trace.used_by_others]
    if not names:
        return ""
    verb = "is" if len(names) == 1 else "are"
    return (
        f"{first_names(names)} {verb} used by some of the images only; multiply-accumulates there are means over the "
        "images."
    )


def acting_zero_share(model: nn.Module, layer: LayerProfile) -> float:
    """Return the share of zeros in the operand by which ``layer`` multiplies, with the current weights of ``model``.

    The operand is the weight, unless that is standardised first: then only whole filters of zeros stay zero.
    """
    owner, _, attribute = layer.parameter.rpartition(".")
    weight: Tensor = getattr(model.get_submodule(owner), attribute)
    if not layer.keeps_zeros:
        weight = weight.movedim(layer.channel_axis, 0).flatten(1).any(1)
    return 1 - int(weight.count_nonzero()) / max(1, weight.numel())
