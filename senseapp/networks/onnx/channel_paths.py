"""Paths of channels in a graph, found by running its steps on tensors of channel numbers in place of activations.

Only steps that move elements, or compute each by itself, are followed. What they hold that depends on the number of
heads (lengths of a shape, stored tensors with numbers of each head) is noted on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from senseapp.networks.onnx.modules import Counted, Fixed, OnnxNetwork, Operation, PerImage, Step
from senseapp.networks.profile import CONVOLUTIONS

_ONE_BY_ONE = frozenset(
    {
        "Identity",
        "Cast",
        "Relu",
        "LeakyRelu",
        "Sigmoid",
        "Tanh",
        "Erf",
        "Gelu",
        "Elu",
        "HardSigmoid",
        "HardSwish",
        "Swish",
    }
)
_WITH_CONSTANTS = frozenset({"Add", "Sub", "Mul", "Div", "AttentionMask"})
SOFTMAXES = frozenset({"Softmax", "AttentionSoftmax"})
"""Operators that make weights over keys of scores."""
UNIT = -1
"""In place of a position among numbers: the length of an axis for one image, by which images are counted."""

_MOVING = frozenset({"Transpose", "SwapLast", "Roll", "Squeeze", "Unsqueeze", "Split", "Slice", "Gather"})


class NotFollowed(Exception):
    """Why channels cannot be followed, as part of a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTable:
    """A stored tensor with numbers of each head; ``heads`` has the head of each position on ``axis``."""

    module: str
    attribute: str
    axis: int
    heads: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Numbers in place of the activation that ``step`` gets."""

    step: Step
    numbers: Tensor


@dataclass(slots=True, kw_only=True)
class Passage:
    """What numbers met on their way.

    Attributes:
        ends: where they arrived.
        sizes: by module and position among its arguments: which of the numbers there are multiples of the heads.
        tables: stored tensors with numbers of each head.
    """

    ends: list[Arrival] = field(default_factory=list)
    sizes: dict[str, dict[int, tuple[int, ...]]] = field(default_factory=dict)
    tables: list[HeadTable] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelPaths:
    """The steps of one network, by the names that its modules have in a model, and the shapes of their results."""

    network: OnnxNetwork
    names: Mapping[nn.Module, str]
    shapes: Mapping[str, tuple[int, ...]]

    def name(self, step: Step) -> str:
        """Return the name of the module that a step calls."""
        return self.names[module_of(step)]

    def spread(self, step: Step, axis: int, numbers: Tensor) -> dict[str, Tensor]:
        """Return ``numbers``, one for each position of ``axis``, in the shape of the result of ``step``."""
        shape = self.shape(step)
        if shape[axis] != len(numbers):
            raise NotFollowed(f"“{self.name(step)}” has another number of channels")
        view = [1] * len(shape)
        view[axis] = -1
        return {step.outputs[0]: numbers.view(view).expand(shape)}

    def shape(self, step: Step) -> tuple[int, ...]:
        """Return the shape of the result of a step."""
        shape = self.shapes.get(self.name(step))
        if not shape:
            raise NotFollowed(f"the shape of “{self.name(step)}” is not known")
        return shape

    def channels(self, step: Step, ends: Sequence[Step]) -> list[Arrival]:
        """Return the numbers of the output channels of the layer that ``step`` calls where ``ends`` read them."""
        axis = channel_axis(module_of(step), len(self.shape(step)))
        passage = Passage()
        self._follow(self.spread(step, axis, torch.arange(self.shape(step)[axis])), ends, passage, heads=False)
        return passage.ends

    def follow_heads(self, numbers: Mapping[str, Tensor], ends: Sequence[Step]) -> Passage:
        """Move numbers of heads in place of values as the steps move these, until one of ``ends`` or a layer.

        Raises NotFollowed at a step that does something else, or that does it to several heads at once.
        """
        passage = Passage()
        self._follow(numbers, ends, passage, heads=True)
        return passage

    def _follow(self, start: Mapping[str, Tensor], ends: Sequence[Step], passage: Passage, *, heads: bool) -> None:
        numbers = dict(start)
        for step in self.network.steps:
            positions = [place for place, name in enumerate(step.inputs) if name in numbers]
            if not positions:
                continue
            if any(step is each for each in ends) or is_layer(module_of(step)):
                passage.ends += [Arrival(step=step, numbers=numbers[step.inputs[place]]) for place in positions]
                continue
            moved = self._moved(step, positions, numbers)
            if heads:
                self._note(step, positions[0], numbers[step.inputs[positions[0]]], moved[0], passage)
            numbers |= dict(zip(step.outputs, moved, strict=False))
        left = next((name for name in self.network.output_names if name in numbers), None)
        if left is not None:
            raise NotFollowed(f"“{left}” is an output of the network")

    def _moved(self, step: Step, positions: Sequence[int], numbers: Mapping[str, Tensor]) -> Sequence[Tensor]:
        module, op, argument = module_of(step), operation_of(step), numbers[step.inputs[positions[0]]]
        alone = len(step.inputs) == 1
        if alone and (op in _ONE_BY_ONE or op in SOFTMAXES or isinstance(module, nn.LayerNorm)):
            return [argument]
        if op in _WITH_CONSTANTS and len(positions) == 1:
            return [argument]
        if op in ("Reshape", "Flatten") and positions == [0]:
            return [argument.reshape(self.shape(step))]
        if op in _MOVING and alone:
            result = module(argument)
            return result if isinstance(result, tuple) else [result]
        raise NotFollowed(f"“{self.name(step)}” ({op or type(module).__name__}) is among its steps")

    def _note(self, step: Step, position: int, argument: Tensor, result: Tensor, passage: Passage) -> None:
        """Note what a step holds that depends on the number of heads."""
        module = module_of(step)
        match operation_of(step):
            case "" if isinstance(module, nn.LayerNorm):
                self._require_even(step, argument, range(argument.ndim - len(module.normalized_shape), argument.ndim))
            case op if op in SOFTMAXES:
                self._require_even(step, argument, range(_keyword(module, "axis") % argument.ndim, argument.ndim))
            case "Reshape":
                self._note_target(step, argument, result, passage)
            case "Split" | "Slice" | "Gather":
                self._note_parts(step, argument, passage)
            case op if op in _WITH_CONSTANTS:
                self._note_tables(step, position, argument, passage)

    def _require_even(self, step: Step, numbers: Tensor, axes: Iterable[int]) -> None:
        """Raise NotFollowed where a step computes with several heads at once."""
        if any(not torch.equal(numbers, numbers.narrow(axis, 0, 1).expand(numbers.shape)) for axis in axes):
            raise NotFollowed(f"“{self.name(step)}” computes with several heads at once")

    def _note_tables(self, step: Step, position: int, argument: Tensor, passage: Passage) -> None:
        stored = {each.name: each for each in self.network.stored}
        for name in (each for place, each in enumerate(step.inputs) if place != position):
            held = stored.get(name)
            if held is None:
                raise NotFollowed(f"“{self.name(step)}” ({operation_of(step)}) joins it with another tensor")
            value: Tensor = getattr(held.holder, held.attribute)
            if value.ndim > argument.ndim:
                raise NotFollowed(f"“{name}” has more axes than its heads")
            for axis in (each for each in range(-value.ndim, 0) if value.shape[each] > 1):
                heads = along(argument, axis)
                if heads is None:
                    continue
                shared = sum(name in each.inputs for each in self.network.steps) > 1
                if shared or is_layer(held.holder) or name in self.network.output_names:
                    raise NotFollowed(f"“{name}” is also used outside of its heads")
                passage.tables.append(
                    HeadTable(
                        module=self.names[held.holder],
                        attribute=held.attribute,
                        axis=axis % value.ndim,
                        heads=heads,
                    )
                )

    def _note_target(self, step: Step, argument: Tensor, result: Tensor, passage: Passage) -> None:
        axes = [axis for axis in range(result.ndim) if along(result, axis) is not None]
        if len(axes) != 1:
            raise NotFollowed(f"“{self.name(step)}” (Reshape) mixes its heads")
        self._note_sizes(step, {1: axes}, argument, passage)

    def _note_parts(self, step: Step, argument: Tensor, passage: Passage) -> None:
        """Note the lengths of a Split and the ends of a Slice along an axis of heads."""
        module, op = module_of(step), operation_of(step)
        lengths, ends = _numbers(module, 1), _numbers(module, 2)
        every = list(range(len(lengths or ())))
        axes = (_numbers(module, 3) or every) if op == "Slice" else [_keyword(module, "axis")]
        cut = [place for place, axis in enumerate(axes) if along(argument, axis) is not None]
        if not cut or (op == "Split" and lengths is None and _keyword(module, "stored") is None):
            return  # heads stay together; or equal parts, however long the axis is
        heads = along(argument, axes[cut[0]])
        borders: list[int] = []
        if op == "Split" and lengths is not None:
            borders = [sum(lengths[:place]) for place in range(len(lengths))]
            cut = list(range(len(lengths)))
        elif op == "Slice" and lengths is not None and ends is not None:
            borders = [each[place] for place in cut for each in (lengths, ends)]
        if not borders or heads is None or not all(_is_whole(heads, each) for each in borders):
            raise NotFollowed(f"“{self.name(step)}” ({op}) takes heads apart")
        self._note_sizes(step, {1: cut, 2: cut} if op == "Slice" else {1: cut}, argument, passage)

    def _note_sizes(self, step: Step, places: Mapping[int, Sequence[int]], numbers: Tensor, passage: Passage) -> None:
        """Note which numbers among the arguments of ``step`` are multiples of the heads."""
        count, module = len(distinct(numbers)), module_of(step)
        assert isinstance(module, Operation)
        for position, entries in places.items():
            slot = module.slots[position]
            if not isinstance(slot, (Fixed, Counted)) or (isinstance(slot, Counted) and slot.scalar):
                raise NotFollowed(f"“{self.name(step)}” ({module.op}) computes its shape")
            own = slot.value if isinstance(slot, Fixed) else slot.numbers
            lengths = {place: each.factor if isinstance(each, PerImage) else each for place, each in enumerate(own)}
            changing = tuple(place for place in entries if lengths[place] not in (0, -1))
            counts_heads = isinstance(slot, Counted) and slot.index == 0 and along(numbers, slot.axis) is not None
            if counts_heads and isinstance(slot, Counted):
                lengths[UNIT] = slot.unit
                changing = (*changing, UNIT)
            if any(lengths[place] % count for place in changing):
                raise NotFollowed(f"“{self.name(step)}” ({module.op}) does not count heads")
            if changing:
                passage.sizes.setdefault(self.name(step), {})[position] = changing


def module_of(step: Step) -> nn.Module:
    """Return the module that ``step`` calls."""
    module: nn.Module = getattr(step.holder, step.attribute)
    return module


def operation_of(step: Step) -> str:
    """Return the operator of a step without weights, else an empty text."""
    module = module_of(step)
    return module.op if isinstance(module, Operation) else ""


def is_layer(module: nn.Module) -> bool:
    """Return whether a module is a convolution or a linear layer."""
    return isinstance(module, (*CONVOLUTIONS, nn.Linear))


def channel_axis(layer: nn.Module, ndim: int) -> int:
    """Return the axis of channels among the ``ndim`` of an input or output of ``layer``."""
    return ndim - 1 - (len(layer.kernel_size) if isinstance(layer, CONVOLUTIONS) else 0)


def along(numbers: Tensor, axis: int) -> tuple[int, ...] | None:
    """Return the one number at each position of ``axis``; None if there are several, or all positions have the same."""
    rows = numbers.movedim(axis, 0).flatten(1)
    if not torch.equal(rows, rows[:, :1].expand(rows.shape)):
        return None
    found = tuple(rows[:, 0].tolist())
    return found if len(set(found)) > 1 else None


def distinct(numbers: Tensor) -> tuple[int, ...]:
    """Return the different ``numbers``, ascending."""
    return tuple(np.unique(numbers.numpy()).tolist())


def _is_whole(heads: Sequence[int], border: int) -> bool:
    """Return whether equally many positions of each head lie before ``border``."""
    if border >= len(heads):
        return border == len(heads)
    return border >= 0 and len({heads[:border].count(each) for each in set(heads)}) == 1


def _keyword(module: nn.Module, name: str) -> int:
    assert isinstance(module, Operation)
    value: int = module.function.keywords[name]  # type: ignore[attr-defined]
    return value


def _numbers(module: nn.Module, position: int) -> list[int] | None:
    """Return the constant numbers at a position among the arguments of ``module``."""
    assert isinstance(module, Operation)
    slot = module.slots[position] if position < len(module.slots) else None
    return list(slot.value) if isinstance(slot, Fixed) and isinstance(slot.value, list) else None
