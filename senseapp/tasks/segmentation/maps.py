"""Layouts of segmentation outputs: the axis of the classes, or the number of each pixel's class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from senseapp.core.texts import plural
from senseapp.metrics.segmentation import VOID
from senseapp.tasks.reading import OutputReader

if TYPE_CHECKING:
    from torch import Tensor

_MOST_SIDE = 4096  # pixels
_SLACK = 0.02  # of the proportions of a map and of the image: strides round its sides


@dataclass(frozen=True, slots=True, kw_only=True)
class MapLayout(OutputReader):
    """Where a map has the classes; makes of it class scores, (N, C, H, W).

    Names are ``classes first`` (N, C, H, W), ``classes last`` (N, H, W, C), or ``class numbers`` with an axis of length
    1 in either place. Maps (N, H, W) are such of (N, 1, H, W). A background is a class like others.

    Attributes:
        size: (height, width) that smaller maps of scores are enlarged to, bilinearly; (0, 0) for their own.
    """

    size: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        numbers = self.name == "class numbers" and 1 < self.num_classes <= VOID
        if not (numbers or self.name in ("classes first", "classes last")) or max(self.size) > _MOST_SIDE:
            raise ValueError(self.name)

    @property
    def words(self) -> str:
        """The layout, as part of a sentence."""
        if self.name == "class numbers":
            return f"the number of one of {plural(self.num_classes, 'class', 'classes')} for each pixel"
        place = "before" if self.name == "classes first" else "behind"
        larger = f", enlarged to {self.size[1]} × {self.size[0]} pixels" if any(self.size) else ""
        return f"a score of each class for each pixel, with the classes {place} height and width{larger}"

    def __call__(self, model_output: object) -> Tensor:
        """Return class scores, (N, C, H, W)."""
        import torch

        values = _with_channel(model_output)
        if self.name != "class numbers":
            scores = values if self.name == "classes first" else values.permute(0, 3, 1, 2)
            enlarged = torch.nn.functional.interpolate
            return enlarged(scores, self.size, mode="bilinear") if any(self.size) else scores
        numbers = values.squeeze(1 if values.shape[1] == 1 else 3).round().long()
        kept = numbers.clamp(0, self.num_classes - 1)
        return 10.0 * torch.nn.functional.one_hot(kept, self.num_classes).permute(0, 3, 1, 2).float()  # a sure logit


def main_map(model_output: object) -> object:
    """Return the map of class scores in what a network returned; auxiliary ones are left out.

    torchvision's networks return a dictionary with the main map under ``out``; of others the first map counts.
    """
    if isinstance(model_output, Mapping):
        if "out" in model_output:
            return model_output["out"]
        model_output = tuple(model_output.values())
    if isinstance(model_output, (tuple, list)):
        maps = [each for dims in (4, 3) for each in model_output if getattr(each, "ndim", 0) == dims]
        return maps[0] if maps else model_output
    return model_output


def map_readers(model_output: object, size: tuple[int, int], num_classes: int = 0) -> Iterator[MapLayout]:
    """Yield the layouts of maps like this one, for images of ``size`` (H, W), the most probable first.

    ``num_classes`` is what else is known to be their number, for maps of class numbers; 0 for what the map holds.
    """
    values = _with_channel(model_output)
    shape = tuple(getattr(values, "shape", ()))
    is_bare = len(getattr(main_map(model_output), "shape", ())) == 3
    if len(shape) != 4 or (is_bare and not _is_in_proportion(shape[2:], size)):
        return
    if 1 in (shape[1], shape[3]) and _are_numbers(values):
        count = max(2, num_classes or (0 if values.is_meta else int(values.max())) + 1)
        if count <= VOID:
            yield MapLayout(name="class numbers", num_classes=count)
        return
    first = _is_in_proportion(shape[2:], size) and shape[1] <= VOID
    last = _is_in_proportion(shape[1:3], size) and shape[3] <= VOID
    if first or not last:
        yield MapLayout(name="classes first", size=size if first and shape[2] < size[0] else (0, 0))
    if last:
        yield MapLayout(name="classes last", size=size if shape[1] < size[0] else (0, 0))


def _with_channel(model_output: object) -> Tensor:
    """Return the map that counts, one of (N, H, W) as (N, 1, H, W)."""
    values = cast("Tensor", main_map(model_output))
    return values[:, None] if getattr(values, "ndim", 0) == 3 else values


def _are_numbers(values: Tensor) -> bool:
    """Return whether values are numbers of classes; of two classes only where they are whole by their type."""
    if values.is_meta or not values.is_floating_point():
        return not values.is_floating_point()
    return bool((values == values.round()).all()) and float(values.max()) > 1


def _is_in_proportion(sides: tuple[int, ...], size: tuple[int, int]) -> bool:
    height, width = sides
    return min(sides) > 1 and abs(height * size[1] - width * size[0]) <= max(_SLACK * height * size[1], *size)
