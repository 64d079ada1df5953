"""A model before it is measured: its layers and sizes, coupled channels, and notes on what its counts leave out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from senseapp.core.errors import InvalidSpec, NoLayersSelected
from senseapp.core.texts import first_names, matcher, plural
from senseapp.descriptions import get


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile:
    """One compressible layer.

    Attributes:
        name: dotted module name.
        layer_type: class name of the module (``Conv2d``); empty where unknown.
        parameter: dotted name of its weight (``layer1.0.conv1.weight``).
        num_params: numbers in the weight; biases are never compressed and not counted; 0 where unknown.
        macs: multiply-accumulates for one image; of a weight that several layers share, all at the first of them.
        input_shape, output_shape: of its first call for one image, without the batch axis; empty if it never ran.
        channel_axis: the weight axis of output channels (0; 1 for transposed convolutions).
        order: place in execution order, from 0; layers that never ran come last.
        runs: whether the layer's weight was used in a forward pass.
        keeps_zeros: whether zeros in the weight are multiplied as zeros; not where it is standardised at each call.
    """

    name: str
    layer_type: str
    parameter: str
    weight_shape: tuple[int, ...]
    num_params: int
    macs: int
    input_shape: tuple[int, ...] = ()
    output_shape: tuple[int, ...] = ()
    channel_axis: int = 0
    order: int = 0
    runs: bool = True
    keeps_zeros: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlistedWeights:
    """Weights of one module that no compressible layer holds, and that are therefore not analysed.

    ``module`` is its dotted name, empty for the model itself; ``parameters`` are names in it.
    """

    module: str
    module_type: str
    parameters: tuple[str, ...]
    num_params: int
    macs: int = 0


INPUT = "image"
"""The name of the node that every network's data flow begins with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowNode:
    """One call of a layer, which may have several, or an operation of ATen on what several nodes computed (``add``, …).

    ``inputs`` are places of the nodes whose results it reads; always earlier ones.
    """

    name: str
    kind: Literal["input", "layer", "join"]
    inputs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """A model's size and its compressible layers, in execution order.

    Attributes:
        num_params: all parameters, biases and norms included.
        macs: multiply-accumulates of the whole model for one image, with products of two activations (attention).
        num_bytes: bytes of all parameters and buffers as loaded.
        input_shape: one image, (C, H, W).
        num_classes: numbers that the model gives for each image: classes, of a classifier.
        pretrained: whether the weights were trained; random weights are always labelled so.
        unlisted: weights that belong to no layer.
        flow: the network as a graph, in execution order; empty in imported tables.
    """

    title: str
    layers: tuple[LayerProfile, ...]
    num_params: int
    macs: int
    num_bytes: int
    input_shape: tuple[int, ...]
    num_classes: int
    pretrained: bool = True
    notes: tuple[str, ...] = field(default=())
    unlisted: tuple[UnlistedWeights, ...] = ()
    flow: tuple[FlowNode, ...] = ()

    def __post_init__(self) -> None:
        if any(not 0 <= source < place for place, node in enumerate(self.flow) for source in node.inputs):
            raise InvalidSpec("The data flow of the model is damaged: a node reads what is computed after it.")

    @property
    def layer_macs(self) -> int:
        """Multiply-accumulates of the layers, which are all that compressing them can save."""
        return sum(layer.macs for layer in self.layers)

    @property
    def sizes_known(self) -> bool:
        """Whether the sizes of the layers are known; an imported table has none."""
        return any(layer.num_params for layer in self.layers)

    def layer(self, name: str) -> LayerProfile:
        """Return the layer called ``name``; raises KeyError where there is none."""
        return {layer.name: layer for layer in self.layers}[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoupledAxis:
    """An axis of a layer's weight, output or input channels, whose ``share`` goes when all units of a group go."""

    layer: str
    axis: Literal["out", "in"]
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CoupledGroup:
    """One group of coupled channels: layers that shrink together when channels go, and by how much.

    Attributes:
        layer: its first member, whose pruning ratio holds for the group.
        num_units: channels, sets of channels, or heads; whole ones go.
        other_macs: multiply-accumulates of attention heads, without a weight, for one image, that go with all units.
    """

    layer: str
    num_units: int
    axes: tuple[CoupledAxis, ...]
    other_macs: int = 0


def counting_notes(profile: ModelProfile, compression: str) -> tuple[str, ...]:
    """Return notes on weights that belong to no layer, and savings that ``compression`` does not bring."""
    share = sum(item.num_params for item in profile.unlisted) / max(1, profile.num_params)
    names = [f"{item.module}.{name}".lstrip(".") for item in profile.unlisted for name in item.parameters]
    verb = "is" if len(names) == 1 else "are"
    unlisted = (
        f"{plural(len(names), 'weight')} ({100 * share:.1f} % of the parameters) {verb} used without a layer and "
        f"{verb} not analysed: {first_names(names)}."
    )
    notes = (
        unlisted if share >= 0.0005 else "",  # what rounds to 0.0 % is in the table only
        standardised_note(profile) if get(compression).zeroes_weights else "",
    )
    return tuple(filter(None, notes))


def standardised_note(profile: ModelProfile) -> str:
    """Say whose zeros save no multiply-accumulates; empty if all weights are multiplied as they are."""
    names = [layer.name for layer in profile.layers if layer.runs and not layer.keeps_zeros]
    if not names:
        return ""
    whose = "The weight of 1 layer is" if len(names) == 1 else f"The weights of {len(names)} layers are"
    return (
        f"{whose} standardised at each call ({first_names(names)}), so zeros do not stay zeros: they save parameters "
        "of the file but no multiplications, unless whole filters are zero."
    )


def select_layers(
    profile: ModelProfile, patterns: Sequence[str] = (), types: Sequence[str] = ()
) -> tuple[LayerProfile, ...]:
    """Return the layers whose name matches any of ``patterns`` and whose type is any of ``types``.

    Patterns are shell patterns (``layer1.*``, ``*.conv1``); no pattern, or no type, means no restriction.
    NoLayersSelected, with what there would have been, if nothing is left; InvalidSpec for too many patterns.
    """
    if not profile.layers:
        raise NoLayersSelected("This model has no compressible layers: it holds no convolution and no linear layer.")
    fits = matcher(patterns)
    named = [layer for layer in profile.layers if not patterns or fits(layer.name)]
    if not named:
        examples = ", ".join(layer.name for layer in profile.layers[:3])
        raise NoLayersSelected(
            f"No layer matches {first_names(patterns)}. Layers here are called {examples}, …; use * for any text, for "
            "example *conv*."
        )
    typed = tuple(layer for layer in named if not types or layer.layer_type in types)
    if not typed:
        present = ", ".join(sorted({layer.layer_type for layer in named}))
        raise NoLayersSelected(f"No selected layer is a {' or '.join(types)}. The types here are {present}.")
    return typed
