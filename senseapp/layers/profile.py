"""Count a network's size and describe its compressible layers, from one forward pass of one image."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from senseapp.errors import UnsupportedModel, first_line_of
from senseapp.layers.compressible import channel_axis_of, compressible_weights
from senseapp.layers.trace import CallTrace, WeightUse, trace_calls
from senseapp.layers.unlisted import unlisted_weights
from senseapp.results import LayerProfile, ModelProfile
from senseapp.tasks import Task


def profile_model(
    module: nn.Module,
    sample: Tensor,
    *,
    task: Task | None = None,
    title: str = "",
    pretrained: bool = True,
    notes: tuple[str, ...] = (),
) -> ModelProfile:
    """Describe ``module`` from one forward pass of ``sample``, float32 (N, C, H, W).

    Raises:
        UnsupportedModel: it fails on the sample, or what it returns is not an output of ``task``, where one is given.
    """
    trace = watched_pass(module, sample)
    return profile_of_trace(module, sample, trace, task=task, title=title, pretrained=pretrained, notes=notes)


def watched_pass(module: nn.Module, sample: Tensor) -> CallTrace:
    """Watch one pass of ``sample``, float32 (N, C, H, W), through ``module``.

    Raises:
        UnsupportedModel: it fails on the sample.
    """
    try:
        return trace_calls(module, sample)
    except (RuntimeError, ValueError, AssertionError, IndexError, TypeError) as error:
        raise UnsupportedModel(
            f"The model cannot take an image of shape {tuple(sample.shape[1:])}: {first_line_of(error)}. "
            "Set the image size and the number of channels that it was made for."
        ) from error


def profile_of_trace(
    module: nn.Module,
    sample: Tensor,
    trace: CallTrace,
    *,
    task: Task | None = None,
    title: str = "",
    pretrained: bool = True,
    notes: tuple[str, ...] = (),
) -> ModelProfile:
    """Describe ``module`` from a pass that was already watched; see :func:`profile_model`."""
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
    )


def _layers(model: nn.Module, trace: CallTrace) -> tuple[LayerProfile, ...]:
    first_calls = {call.module: call for call in reversed(trace.calls)}
    shared = {id(parameter): name for name, parameter in model.named_parameters()}
    first_names: dict[str, str] = {}  # of a weight, by the name that this layer gives it
    found = []
    for name, module, attribute in compressible_weights(model):
        weight: Tensor = getattr(module, attribute)
        parameter = f"{name}.{attribute}" if name else attribute
        first_names[parameter] = shared.get(id(weight), parameter)
        use = trace.uses.get(first_names[parameter])
        uses = [use] if use else _uses_within(name, trace)
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
            channel_axis=channel_axis_of(module),
            runs=first_event is not None,
            keeps_zeros=all(each.keeps_zeros for each in uses),
        )
        found.append((torch.inf if first_event is None else first_event, profile))
    found.sort(key=lambda pair: pair[0])  # stable: layers that never ran keep their order, at the end
    counted: set[str] = set()
    layers = []
    for order, (_, profile) in enumerate(found):
        weight_name = first_names[profile.parameter]
        macs = 0 if weight_name in counted else profile.macs  # all calls with a shared weight count at its first layer
        counted.add(weight_name)
        layers.append(replace(profile, order=order, macs=macs))
    return tuple(layers)


def _uses_within(layer: str, trace: CallTrace) -> list[WeightUse]:
    """Return the uses of what the layer's weight is computed from."""
    prefix = f"{layer}." if layer else ""
    return [use for name, use in trace.uses.items() if name.startswith(prefix)]
