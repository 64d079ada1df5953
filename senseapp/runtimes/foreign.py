"""Files of any program, run as they are: the interface of a runtime that opens them for a check."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from senseapp.runtimes.base import RuntimeNetwork

Shape = tuple[int | None, ...]
"""Of a tensor as a file declares it; None where a length is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """Declarations of a file.

    Attributes:
        input_name, input_shape, input_type: of the images; the type as ``float32``.
        channels_last: whether images are (N, H, W, C).
        outputs: name and shape of each output.
        metadata: texts that the file holds about itself.
    """

    input_name: str
    input_shape: Shape
    input_type: str
    channels_last: bool
    outputs: tuple[tuple[str, Shape], ...]
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def image_shape(self) -> Shape:
        """Of one image, (C, H, W)."""
        _, first, second, third = self.input_shape
        return (third, first, second) if self.channels_last else (first, second, third)

    @property
    def takes_pixels(self) -> bool:
        """Whether it takes whole numbers: pixels from 0 to 255."""
        return not self.input_type.startswith("float")

    @property
    def takes(self) -> str:
        """The input in words: ``“images”, float32 (N, 3, 224, 224)``."""
        return f"“{self.input_name}”, {self.input_type} {shape_text(self.input_shape)}"

    @property
    def returns(self) -> str:
        """The outputs in words."""
        return ", ".join(f"“{name}” {shape_text(shape)}" for name, shape in self.outputs)


def shape_text(shape: Shape) -> str:
    """Return a declared shape as text.

    >>> shape_text((None, 3, 224, 224))
    '(N, 3, 224, 224)'
    >>> shape_text((1, 3, None, None))
    '(1, 3, ?, ?)'
    """
    lengths = ("N" if length is None and axis == 0 else "?" if length is None else str(length)
               for axis, length in enumerate(shape))  # fmt: skip
    return f"({', '.join(lengths)})"


class ForeignFile(RuntimeNetwork):
    """A file that some program wrote, open in a runtime, with its first outputs or those chosen.

    Attributes:
        facts: what it declares.
    """

    facts: FileFacts

    @abstractmethod
    def choose(self, names: tuple[str, ...]) -> None:
        """Return only these outputs from now on; raises InvalidSpec where the file has none of that name."""

    def unsaturated(self) -> ForeignFile | None:
        """Return an int8 file as processors compute it on which no sum of products of 8 bits saturates.

        None where none does here, or in no int8.

        Raises:
            UnsupportedModel: it cannot be computed so.
        """
        return None

    @abstractmethod
    def fed(self, images: Tensor) -> Tensor:
        """Return float32 images (N, C, H, W) as the file's input takes them: its layout, type and number of images."""
