"""Prunable groups of a model's channels or heads, verified by gradients, and the ranking of their units.

torch-pruning follows reshapes by their sizes. Where a network shuffles or regroups channels, it can select wrong ones,
and the pruned network runs without any error. One forward and two backward passes verify all groups at once.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch_pruning
from torch import Tensor, nn

from senseapp.compat.torch_pruning_internals import group_of
from senseapp.compressions import PruningConfig
from senseapp.compressions.base import find_weights
from senseapp.compressions.pruning.graph import ChannelGraph, Cut, left_as_found, mixes_neighbours, why_untraceable
from senseapp.compressions.pruning.groups import ChannelGroup, channel_groups, head_groups, is_layer, positions_of
from senseapp.compressions.pruning.removal import unshrinkable
from senseapp.compressions.sparsity.criteria import layer_generator
from senseapp.core.errors import MeasurementFailed
from senseapp.core.registry import grouped
from senseapp.networks.onnx.modules import layers_of_products
from senseapp.networks.profile import BATCH_NORMS, CONVOLUTIONS
from senseapp.networks.trace import CallTrace, wrapped_forwards
from senseapp.records.profile import LayerProfile

_Calls = dict[nn.Module, list[Tensor]]
_NORMS = (*BATCH_NORMS, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, nn.LayerNorm, nn.GroupNorm)


def find_groups(
    model: nn.Module,
    profiles: Mapping[str, LayerProfile],
    example: torch.Tensor,
    trace: CallTrace,
    seed: int,
    *,
    progress: Callable[[str], None] = lambda _sentence: None,
) -> tuple[dict[str, ChannelGroup], dict[str, str]]:
    """Return the prunable groups by first member, in execution order, and by layer why its output channels cannot go.

    All reasons against pruning are found here: any exception, and any excessive run time, is a reason. ``model``, in
    ``eval()`` mode, is left unchanged; ``profiles`` are its layers by name, in execution order. ``trace`` is a pass
    over the first of the images ``example``, (N, C, H, W). ``progress`` receives a sentence before each slow step.
    """
    progress("Finding which channels are coupled")
    reasons: dict[str, str] = {}
    try:
        reasons |= _fixed_layers(model, profiles)
        shapes = (shape for call in trace.calls for shape in (call.input_shape, call.output_shape))
        graph = ChannelGraph(model, example, widest=max(map(math.prod, shapes), default=1) / trace.batch_size)
        groups = _candidates(graph, profiles, reasons, layers_of_products(model), progress)
        progress("Checking which channels can be removed")
        for check in (miswired, unshrinkable):
            wrong = check(graph, groups, example, trace, seed)
            for index, why in wrong.items():
                reasons |= dict.fromkeys(groups[index].members, why)
            groups = [group for index, group in enumerate(groups) if index not in wrong]
    except Exception as error:
        return {}, dict.fromkeys(profiles, why_untraceable(error)) | reasons
    sound = {group.members[0]: group for group in groups}
    return {name: sound[name] for name in profiles if name in sound}, reasons


def _candidates(
    graph: ChannelGraph,
    profiles: Mapping[str, LayerProfile],
    reasons: dict[str, str],
    kept: Mapping[str, str],
    progress: Callable[[str], None],
) -> list[ChannelGroup]:
    """Return groups of heads and torch-pruning's groups; layers in ``kept`` cannot go, and ``reasons`` says why."""
    for name in profiles.keys() - reasons.keys():
        module = graph.model.get_submodule(name)
        if mixes_neighbours(module):
            reasons[name] = "It has a single channel: it convolves along the channels of its input."
        elif module not in graph:
            reasons[name] = "torch-pruning sees no call of this layer that the model's output depends on."
    kept = {name: why for name, why in kept.items() if name in profiles and name not in reasons}
    heads = [group for group in head_groups(graph) if not (reasons | kept).keys() & set(group.members)]
    taken = {member for group in heads for member in group.members}
    free = [name for name in profiles if name not in reasons and name not in kept]
    channels, left_out = channel_groups(graph, free, reasons, kept, taken, progress)
    reasons |= kept | left_out
    return [*heads, *channels]


def _fixed_layers(model: nn.Module, profiles: Mapping[str, LayerProfile]) -> dict[str, str]:
    """Return the layers whose weight cannot be replaced by a smaller one, with the reason."""
    weights, reasons = find_weights(model, tuple(profiles.values()))
    for name, weight in weights.items():
        if len(weight.target.modules) > 1:
            reasons[name] = "Its weight is shared with another layer, so neither can lose channels by itself."
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            for layer in (layer for layer in profiles if layer == name or layer.startswith(f"{name}.")):
                reasons[layer] = (
                    "nn.MultiheadAttention requires the width of its heads to equal that of its input, "
                    "so no head can be removed."
                )
    return reasons


def miswired(
    graph: ChannelGraph, groups: Sequence[ChannelGroup], example: Tensor, trace: CallTrace, seed: int
) -> dict[int, str]:
    """Return, by index into ``groups``, why its channels are not those that torch-pruning assumes.

    In each group half of the units is chosen at random. A gradient that enters only at chosen input channels of readers
    must arrive at chosen channels of the producers only; one that enters at input channels of no group must not arrive
    at all. The first of the images ``example``, (N, C, H, W), are those of ``trace``.
    """
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(group.units), generator=generator).tolist() for group in groups]
    chosen = [group.channels(order[: max(len(order) // 2, 1)]) for group, order in zip(groups, orders, strict=True)]
    with left_as_found(graph.model):
        inputs, outputs = _run_in_segments(graph, example[: trace.batch_size], trace, generator)
        read = [(module, each) for module, calls in inputs.items() for each in calls if each.requires_grad]
        noises = [(*each, torch.randn(each[1].shape, generator=generator).to(each[1])) for each in read]
        towards_chosen = _gradients(outputs, noises, _read(graph, groups, chosen), elsewhere=False)
        every = [group.channels(range(len(group.units))) for group in groups]
        towards_others = _gradients(outputs, noises, _read(graph, groups, every), elsewhere=True)
    found: dict[int, str] = {}
    for index, (group, half) in enumerate(zip(groups, chosen, strict=True)):
        for cut in (cut for cut in group.cuts if is_layer(cut.module) and graph.is_out_cut(cut)):
            wanted = _energy(towards_chosen, cut.layer, positions_of(cut, half))
            leaked = _energy(towards_chosen, cut.layer) - wanted + _energy(towards_others, cut.layer)
            if leaked > 0.05 * wanted:  # statistics over channels (GRN) stay well below
                found[index] = (
                    f"The channels of {graph.names[cut.layer]} are rearranged or mixed before the next layer in a way "
                    "that torch-pruning does not follow, so the wrong ones would go."
                )
    return found


def _run_in_segments(
    graph: ChannelGraph, example: Tensor, trace: CallTrace, generator: torch.Generator
) -> tuple[_Calls, _Calls]:
    """Run the model once, with noise in place of every layer's output, and every norm as the identity.

    Returns by layer the input of each call, as a function of the outputs of earlier layers, and the fresh noise that
    replaces its output. Norms mix channels by their statistics, never by their wiring; noise keeps activations away
    from saturation. No layer is computed: ``trace`` has the shapes of outputs.
    """
    inputs: _Calls = {}
    outputs: _Calls = {}
    shapes = grouped((call.module, call.output_shape) for call in reversed(trace.calls))

    def cut_open(name: str, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def answered_by_noise(*args: Any, **kwargs: Any) -> Tensor:
            inputs.setdefault(module, []).append(args[0].clone())
            shape = shapes[name].pop() if shapes.get(name) else forward(*args, **kwargs).shape
            noise = torch.randn(shape, generator=generator).to(args[0]).requires_grad_(True)
            outputs.setdefault(module, []).append(noise)
            return noise.clone()  # a leaf itself may not be changed in place

        if is_layer(module) and module in graph:
            return answered_by_noise
        if isinstance(module, _NORMS) or mixes_neighbours(module):
            return lambda values, *_args, **_kwargs: values
        return forward

    with wrapped_forwards(graph.model, cut_open):
        graph.model(example)
    return inputs, outputs


def _read(
    graph: ChannelGraph, groups: Sequence[ChannelGroup], channels: Sequence[frozenset[int]]
) -> dict[nn.Module, list[int]]:
    """Return, by layer, the input channels that come from these channels of the groups."""
    read: dict[nn.Module, list[int]] = {}
    for group, some in zip(groups, channels, strict=True):
        for cut in group.cuts:
            if is_layer(cut.module) and graph.is_in_cut(cut):
                read.setdefault(cut.layer, []).extend(positions_of(cut, some))
    return read


def _gradients(
    outputs: _Calls,
    noises: Sequence[tuple[nn.Module, Tensor, Tensor]],
    read: dict[nn.Module, list[int]],
    *,
    elsewhere: bool,
) -> dict[nn.Module, Tensor]:
    """Return the energy (channels,), by producer, of gradients of noise at these input channels, or ``elsewhere``."""
    entering = []
    for module, tensor, noise in noises:
        axis = _channel_axis(module, tensor)
        mask = torch.zeros(tensor.shape[axis], device=tensor.device)
        mask[read.get(module, [])] = 1.0
        shape = [-1 if place == axis else 1 for place in range(tensor.dim())]
        entering.append(noise * (1.0 - mask if elsewhere else mask).view(shape))
    inputs = [tensor for _, tensor, _ in noises]
    leaves = [(module, leaf) for module, calls in outputs.items() for leaf in calls]
    gradients = torch.autograd.grad(
        inputs, [leaf for _, leaf in leaves], entering, retain_graph=True, allow_unused=True
    )
    energies: dict[nn.Module, Tensor] = {}
    for (module, _), gradient in zip(leaves, gradients, strict=True):
        if gradient is not None:
            energy = gradient.double().square().movedim(_channel_axis(module, gradient), 0).flatten(1).sum(1)
            energies[module] = energies.get(module, 0) + energy
    return energies


def _energy(energies: dict[nn.Module, Tensor], producer: nn.Module, positions: Sequence[int] | None = None) -> float:
    energy = energies.get(producer)
    if energy is None:
        return 0.0
    return float(energy.sum() if positions is None else energy[list(positions)].sum())


def _channel_axis(module: nn.Module, tensor: Tensor) -> int:
    """Return the channel axis of a layer's input or output: last for a linear layer, before space for others."""
    if isinstance(module, nn.Linear):
        return tensor.dim() - 1
    assert isinstance(module, CONVOLUTIONS)
    return tensor.dim() - 1 - len(module.kernel_size)


IMPORTANCES: dict[str, Callable[[], Callable[[object], Tensor | None]]] = {
    "magnitude": lambda: torch_pruning.importance.MagnitudeImportance(p=2),
    "magnitude_l1": lambda: torch_pruning.importance.MagnitudeImportance(p=1),
    "lamp": torch_pruning.importance.LAMPImportance,
    "fpgm": torch_pruning.importance.FPGMImportance,
    "bn_scale": torch_pruning.importance.BNScaleImportance,
    "random": torch_pruning.importance.RandomImportance,
}


def unit_order(config: PruningConfig, group: ChannelGroup, seed: int) -> list[int]:
    """Return the units of ``group``, least important first, by the mean over the channels of each."""
    importance = IMPORTANCES[config.criterion]()
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.no_grad():
        torch.manual_seed(layer_generator(seed, group.members[0]).initial_seed())
        scores = importance(_as_torch_pruning(group, grouped_readers=config.criterion != "fpgm"))
    if scores is None:
        raise MeasurementFailed(
            f"The {config.criterion} criterion finds nothing to rank {group.members[0]} by (it has no BatchNorm). "
            "Choose the magnitude criterion."
        )
    units = torch.tensor(group.units, device=scores.device)  # (units, channels of each)
    order: list[int] = scores[units].mean(1).argsort(stable=True).tolist()
    return order


def _as_torch_pruning(group: ChannelGroup, *, grouped_readers: bool) -> torch_pruning.Group:
    """Return the group in torch-pruning's own form, with the cuts that hold all channels first.

    Its importances take their size from the first entry, so a BatchNorm over a part must not come first. Its FPGM fails
    on grouped convolutions that read the group; without ``grouped_readers`` they are left out.
    """
    cuts = [cut for cut in group.cuts if grouped_readers or not _is_grouped_reader(group, cut)]
    cuts.sort(key=lambda cut: -len(set(cut.root_indices)))
    return group_of((cut.dependency, cut.indices, cut.root_indices) for cut in cuts)


def _is_grouped_reader(group: ChannelGroup, cut: Cut) -> bool:
    return isinstance(cut.module, CONVOLUTIONS) and cut.module.groups > 1 and not group.graph.is_out_cut(cut)
