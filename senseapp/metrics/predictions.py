"""Predictions: the compact form of a network's outputs that metrics compare, one entry for each image.

A task that compares one tensor, such as class scores (N, classes), uses that tensor. Others use :class:`Columns`:
several tensors, or objects of different size for each image, such as its boxes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, overload

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Predictions of several parts, by name, images first.

    A part is a tensor (N, ...), or a tuple with one object for each image: a tensor of any shape, or numbers.
    """

    parts: Mapping[str, Any]

    def __post_init__(self) -> None:
        if len({len(part) for part in self.parts.values()}) != 1:
            lengths = {name: len(part) for name, part in self.parts.items()}
            raise ValueError(f"All parts of predictions need one entry for each image, got {lengths}.")

    def __len__(self) -> int:
        return len(next(iter(self.parts.values())))

    @property
    def shape(self) -> tuple[int | tuple[int, ...], ...]:
        """Number of images, and shapes of the parts that are tensors."""
        return len(self), *(tuple(part.shape) for part in self.parts.values() if not isinstance(part, tuple))

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return (self[index] for index in range(len(self)))

    @overload
    def __getitem__(self, chosen: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, chosen: slice | Tensor) -> Columns: ...
    def __getitem__(self, chosen: int | slice | Tensor) -> Columns | Mapping[str, Any]:
        """Return the parts of one image, or the predictions of those in a slice or at positions, int64 (n,)."""
        if isinstance(chosen, int):
            return {name: part[chosen] for name, part in self.parts.items()}
        return Columns(parts={name: _taken(part, chosen) for name, part in self.parts.items()})


Predictions: TypeAlias = "Tensor | Columns"
"""Of N images: a tensor (N, ...), or several parts."""


def _taken(part: Any, chosen: slice | Tensor) -> Any:
    if isinstance(part, tuple) and not isinstance(chosen, slice):
        return tuple(part[int(place)] for place in chosen)
    return part[chosen]


def mapped(predictions: Predictions, change: Callable[[Tensor], Tensor]) -> Predictions:
    """Return predictions with ``change`` applied to each tensor."""
    if not isinstance(predictions, Columns):
        return change(predictions)
    return Columns(parts={name: _changed(part, change) for name, part in predictions.parts.items()})


def _changed(part: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(part, tuple):
        return tuple(_changed(each, change) for each in part)
    return change(part) if _is_tensor(part) else part


def stored(predictions: Predictions) -> Predictions:
    """Return predictions on the CPU, in tensors of their own without gradients, numbers with a fraction as float32."""

    def kept(values: Tensor) -> Tensor:
        return (values.float() if values.is_floating_point() else values).detach().cpu().clone()

    return mapped(predictions, kept)


def precise(predictions: Predictions) -> Predictions:
    """Return predictions without gradients, numbers with a fraction as float64."""
    return mapped(predictions, lambda each: each.detach().double() if each.is_floating_point() else each.detach())


def joined(parts: Sequence[Predictions]) -> Predictions:
    """Return the predictions of several batches as those of all their images."""
    if len(parts) == 1:
        return parts[0]
    gathered = Gathered(sum(map(len, parts)))
    for part in parts:
        gathered.add(part)
    return gathered.predictions


class Gathered:
    """Predictions of ``count`` images, added batch by batch, so that none of them is held twice."""

    def __init__(self, count: int) -> None:
        self._count, self._held, self._parts = count, 0, dict[str, Any]()

    def add(self, predictions: Predictions) -> None:
        """Add the predictions of the next images."""
        for name, part in _named(predictions).items():
            if isinstance(part, tuple):
                self._parts[name] = self._parts.get(name, ()) + part
                continue
            if name not in self._parts:
                self._parts[name] = part.new_empty((self._count, *part.shape[1:]))
            self._parts[name][self._held : self._held + len(part)] = part
        self._held += len(predictions)

    @property
    def predictions(self) -> Predictions:
        """Of all images so far."""
        parts = {name: part[: self._held] for name, part in self._parts.items()}
        return parts[""] if "" in parts else Columns(parts=parts)


def _named(predictions: Predictions) -> Mapping[str, Any]:
    return predictions.parts if isinstance(predictions, Columns) else {"": predictions}


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield all tensors of predictions, or of nested tuples, lists and dictionaries, in order."""
    if isinstance(value, Columns):
        value = value.parts
    if _is_tensor(value):
        yield value
    elif isinstance(value, tuple | list | Mapping):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(each)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def num_bytes(predictions: Predictions) -> int:
    """Return how much memory predictions take, about."""
    tensors = sum(each.numel() * each.element_size() for each in tensors_in(predictions))
    objects = sum(len(part) for part in _named(predictions).values() if isinstance(part, tuple))
    return tensors + 64 * objects  # bytes of a Python object, at least


def equal(one: Any, other: Any) -> bool:
    """Return whether two predictions or outputs of a model are equal to the bit; two NaN are equal."""
    ours, theirs = list(tensors_in(one)), list(tensors_in(other))
    if not ours or [each.shape for each in ours] != [each.shape for each in theirs]:
        return False
    return all(bool(((a == b) | (a.isnan() & b.isnan())).all()) for a, b in zip(ours, theirs, strict=True))


def num_not_finite(predictions: Predictions) -> int:
    """Return of how many images a number is not finite."""
    import torch

    bad = torch.zeros(len(predictions), dtype=torch.bool)
    for part in _named(predictions).values():
        if isinstance(part, tuple):
            finite = [all(bool(each.isfinite().all()) for each in tensors_in(one)) for one in part]
            bad |= ~torch.tensor(finite, dtype=torch.bool)
        else:  # in parts, as it takes as much memory again
            rows = [each.isfinite().reshape(len(each), -1).all(1).cpu() for each in part.split(64)]  # images
            bad |= ~torch.cat(rows)
    return int(bad.sum())
