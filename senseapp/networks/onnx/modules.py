"""The modules of a network built from a graph: operations without weights, and the network that calls all of them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from senseapp.networks.profile import CONVOLUTIONS

_NEW_TENSORS = frozenset({"ConstantOfShape", "Range"})
_PRODUCTS = frozenset({"MatMul", "Einsum", "Attention"})


@dataclass(frozen=True, slots=True)
class Positional:
    """The argument is the tensor of this position, or the numbers in it."""

    index: int
    as_numbers: bool = False

    def of(self, tensors: tuple[Tensor, ...]) -> Any:
        """Return the argument for a call with ``tensors``."""
        return tensors[self.index].tolist() if self.as_numbers else tensors[self.index]


@dataclass(frozen=True, slots=True)
class Length:
    """A number that follows the length of an axis of a tensor: over ``unit``, times ``factor``."""

    axis: int
    unit: int = 1
    factor: int = 1


@dataclass(frozen=True, slots=True)
class Counted:
    """The argument is numbers of which some follow lengths of the tensor at ``index``, such as the number of images."""

    numbers: tuple[int | Length, ...]
    scalar: bool
    index: int

    def of(self, tensors: tuple[Tensor, ...]) -> Any:
        """Return the argument for a call with ``tensors``."""
        shape = tensors[self.index].shape
        found = [
            shape[each.axis] // each.unit * each.factor if isinstance(each, Length) else each for each in self.numbers
        ]
        return found[0] if self.scalar else found


Slot = Positional | Counted | Any
"""An argument of an operation: from its tensors, or as it is."""


class Operation(nn.Module):
    """One node without weights of its own."""

    def __init__(self, op: str, function: Callable[..., Any], slots: tuple[Slot, ...]) -> None:
        super().__init__()
        self.op = op
        self.function = function
        self.slots = slots
        self._in_order = slots == tuple(Positional(index) for index in range(len(slots)))

    def forward(self, *tensors: Tensor) -> Any:
        """Compute the node from the values that it reads."""
        if self._in_order:
            return self.function(*tensors)
        arguments = [each.of(tensors) if isinstance(each, (Positional, Counted)) else each for each in self.slots]
        result = self.function(*arguments)
        return result.to(tensors[0].device) if self.op in _NEW_TENSORS and tensors else result

    def extra_repr(self) -> str:
        """Name the operator."""
        return self.op


class Scope(nn.Module):
    """Holds the modules and parameters of one module of the exported network; it is never called itself."""


@dataclass(slots=True, kw_only=True)
class Step:
    """One call of ``holder.attribute``; values ``done`` are not read again."""

    holder: nn.Module
    attribute: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    done: tuple[str, ...] = ()

    def run(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return what the call computes from ``values``."""
        results = getattr(self.holder, self.attribute)(*[values[name] for name in self.inputs])
        return results if isinstance(results, tuple) else (results,)


@dataclass(slots=True, kw_only=True)
class Stored:
    """A parameter or buffer that is read as the value ``name``."""

    name: str
    holder: nn.Module
    attribute: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInput:
    """How float32 images (N, C, H, W) become the only input of a graph.

    With ``channels_last`` it takes (N, H, W, C), with a ``batch`` so many images at once. Values are rounded where its
    ``dtype`` holds whole numbers.
    """

    channels_last: bool = False
    dtype: torch.dtype = torch.float32
    batch: int | None = None

    def of(self, images: Tensor) -> Tensor:
        """Return the input for ``images``, filled up to :attr:`batch` with copies of the first."""
        missing = (self.batch or len(images)) - len(images)
        if missing:
            images = torch.cat([images, images[:1].expand(missing, -1, -1, -1)])
        if self.channels_last:
            images = images.permute(0, 2, 3, 1)
        return images if self.dtype.is_floating_point else images.round().to(self.dtype)


class OnnxNetwork(Scope):
    """A network from an ONNX graph: takes its inputs in order; returns its output, or a tuple of several.

    With :attr:`images` it takes images (N, C, H, W) instead, as every measurement does, any number of them: a graph
    with a fixed batch is then run as often as it takes. It then returns what :attr:`reader` makes of the outputs, where
    there is one. :attr:`origin` tells networks of different files apart.

    Each node is a call of a module, in the order of the graph; no code is generated, so that names in a file are text
    wherever they end up. Modules are looked up at each call: one that takes another's place is called from then on.
    :attr:`in_runtime` names the nodes that onnxruntime computes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.input_names: tuple[str, ...] = ()
        self.output_names: tuple[str, ...] = ()
        self.steps: list[Step] = []
        self.stored: list[Stored] = []
        self.images: ImageInput | None = None
        self.reader: Callable[[object], object] | None = None
        self.origin = ""
        self.in_runtime: tuple[str, ...] = ()

    @property
    def images_per_pass(self) -> int | None:
        """Number of images that each pass computes; None if it is that of its input."""
        return None if self.images is None else self.images.batch

    def forward(self, *inputs: Tensor) -> Any:
        """Run the graph on ``inputs`` as the file declares them, or on images; see :attr:`images`."""
        if self.images is None:
            outputs = self._outputs(inputs)
            return outputs[0] if len(outputs) == 1 else outputs
        found = self.unread(*inputs)
        return found if self.reader is None else self.reader(found)

    def unread(self, images: Tensor) -> Any:
        """Return the outputs for images before :attr:`reader`."""
        assert self.images is not None
        size = self.images.batch
        if size in (None, len(images)):
            outputs = self._outputs((self.images.of(images),))
        else:
            parts = ((len(part), self._outputs((self.images.of(part),))) for part in torch.split(images, size))
            outputs = tuple(
                map(torch.cat, zip(*([each[:count] for each in part] for count, part in parts), strict=True))
            )
        return outputs[0] if len(outputs) == 1 else outputs

    def extra_repr(self) -> str:
        """Name what the network was read from."""
        return self.origin

    def _outputs(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(map(self._run(inputs, frozenset()).__getitem__, self.output_names))

    def release_values(self) -> None:
        """Let values go after their last use."""
        seen = {*self.output_names, *(each.name for each in self.stored)}
        for step in reversed(self.steps):
            step.done = tuple(dict.fromkeys(name for name in step.inputs if name not in seen))
            seen.update(step.done)

    def values(self, names: Iterable[str], *inputs: Tensor) -> dict[str, Tensor]:
        """Run the graph and return those of the values ``names`` that it computes."""
        wanted = frozenset(names)
        return {name: value for name, value in self._run(inputs, wanted).items() if name in wanted}

    def _run(self, inputs: tuple[Tensor, ...], kept: frozenset[str]) -> dict[str, Any]:
        values: dict[str, Any] = dict(zip(self.input_names, inputs, strict=True))
        for each in self.stored:
            values[each.name] = getattr(each.holder, each.attribute)
        for step in self.steps:
            values.update(zip(step.outputs, step.run(values), strict=False))
            for name in step.done:
                if name not in kept:
                    values.pop(name, None)
        return values


def layers_of_products(model: nn.Module) -> dict[str, str]:
    """Return, by each layer of a network from a file that makes a factor of such a product, why it keeps its channels.

    Which channels are a head does not follow from the file. Modules that do not come from a file have none here.
    """
    names = {module: name for name, module in model.named_modules()}
    reasons: dict[str, str] = {}
    for network in (each for each in model.modules() if isinstance(each, OnnxNetwork)):
        nearest: dict[str, set[nn.Module]] = {}  # layers before a value, across norms and what has no weights
        for step in network.steps:
            module = getattr(step.holder, step.attribute)
            factors = [layers for name in step.inputs if (layers := nearest.get(name))]
            is_layer = isinstance(module, (*CONVOLUTIONS, nn.Linear))
            nearest |= dict.fromkeys(step.outputs, {module} if is_layer else set().union(*factors))
            if isinstance(module, Operation) and module.op in _PRODUCTS and len(factors) > 1:
                why = (
                    f"Attention is written as matrix products in the file (“{names[module]}”): heads are not pruned in "
                    "ONNX files, only in modules of timm."
                )
                reasons |= {names[layer]: why for layers in factors for layer in layers} | reasons
    return reasons
