"""Layouts of segmentation outputs: the axis of the classes, or the number of each pixel's class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from senseapp.core.errors import InvalidSpec
from senseapp.core.texts import plural
from senseapp.metrics.segmentation import VOID
from senseapp.tasks.reading import UsualInput, layout_from, layout_key

if TYPE_CHECKING:
    from torch import Tensor

_SURE = 10.0  # logit of a pixel's class where only its number is known
_SLACK = 0.02  # of the proportions of a map and of the image: strides round its sides


@dataclass(frozen=True, slots=True, kw_only=True)
class MapLayout:
    """Where a map has the classes.

    Attributes:
        name: ``classes first`` (N, C, H, W), ``classes last`` (N, H, W, C), or ``class numbers`` (N, H, W) with an axis
            of length 1 in either place.
        num_classes: 0 where the map tells.
    """

    name: str
    num_classes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MapReader:
    """Brings maps of one layout to class scores, (N, C, H, W); see :class:`~senseapp.tasks.reading.OutputReader`."""

    layout: MapLayout

    @property
    def key(self) -> str:
        """The layout as a setting."""
        return layout_key(self.layout)

    @property
    def num_outputs(self) -> int:
        """Number of classes; 0 where the map tells."""
        return self.layout.num_classes

    @property
    def background(self) -> Literal["unknown"]:
        """A background is a class like others."""
        return "unknown"

    @property
    def usual_input(self) -> UsualInput | None:
        """Families differ."""
        return None

    @property
    def words(self) -> str:
        """The layout, as part of a sentence."""
        if self.layout.name == "class numbers":
            return f"the number of one of {plural(self.layout.num_classes, 'class', 'classes')} for each pixel"
        place = "before" if self.layout.name == "classes first" else "behind"
        return f"a score of each class for each pixel, with the classes {place} height and width"

    def __call__(self, model_output: object) -> Tensor:
        """Return class scores, (N, C, H, W)."""
        from senseapp.tasks.segmentation import main_map

        values = cast("Tensor", main_map(model_output))
        if self.layout.name == "classes first":
            return values
        if self.layout.name == "classes last":
            return values.permute(0, 3, 1, 2)
        import torch

        numbers = values.flatten(1).reshape(_grid(values)).round().long()
        kept = numbers.clamp(0, self.layout.num_classes - 1)
        return _SURE * torch.nn.functional.one_hot(kept, self.layout.num_classes).permute(0, 3, 1, 2).float()


def map_readers(model_output: object, size: tuple[int, int], num_classes: int = 0) -> tuple[MapReader, ...]:
    """Return readers of maps like this one, for images of ``size`` (H, W), the most probable first.

    ``num_classes`` is what else is known to be their number, for maps of class numbers; 0 for what the map holds.
    """
    from senseapp.tasks.segmentation import main_map

    found = main_map(model_output)
    if not hasattr(found, "shape"):
        return ()
    return tuple(MapReader(layout=layout) for layout in _layouts(cast("Tensor", found), size, num_classes))


def map_reader_from(key: str) -> MapReader:
    """Return the reader of a layout that a setting names; raises InvalidSpec where it names none."""
    layout = layout_from(key, MapLayout)
    needs_number = layout.name == "class numbers"
    if (layout.name not in ("classes first", "classes last") and not needs_number) or (
        needs_number and not 1 < layout.num_classes <= VOID
    ):
        raise InvalidSpec(f"There is no layout {layout.name[:40]!r} of maps. Take one that the reading lists.")
    return MapReader(layout=layout)


def _layouts(values: Tensor, size: tuple[int, int], num_classes: int) -> Iterator[MapLayout]:
    shape = tuple(values.shape)
    if len(shape) == 3 and not _is_in_proportion(shape[1:], size):
        return
    if len(shape) == 3 or (len(shape) == 4 and 1 in (shape[1], shape[3])):
        whole = not values.is_meta and bool((values == values.round()).all())
        highest = 1 if values.is_meta else int(values.max())
        if len(shape) == 3 or (whole and (highest > 1 or not values.is_floating_point())):
            yield MapLayout(name="class numbers", num_classes=num_classes or max(2, highest + 1))
            return
    if len(shape) != 4:
        return
    first = _is_in_proportion(shape[2:], size) and shape[1] <= VOID
    last = _is_in_proportion(shape[1:3], size) and shape[3] <= VOID
    if first or not last:
        yield MapLayout(name="classes first")
    if last:
        yield MapLayout(name="classes last")


def _is_in_proportion(sides: tuple[int, ...], size: tuple[int, int]) -> bool:
    height, width = sides
    return min(sides) > 1 and abs(height * size[1] - width * size[0]) <= max(_SLACK * height * size[1], *size)


def _grid(values: Tensor) -> tuple[int, ...]:
    """Return the shape (N, H, W) of a map of class numbers."""
    shape = tuple(values.shape)
    return shape if len(shape) == 3 else (shape[0], *(shape[2:] if shape[1] == 1 else shape[1:3]))
