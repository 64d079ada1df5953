"""Files that are open in a runtime: its own, and those of any program, run as they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from senseapp.core.errors import InvalidSpec
from senseapp.records.check import TensorDivergence
from senseapp.runtimes.quantizers import QuantizedFile

Shape = tuple[int | None, ...]
"""Of a tensor as a file declares it; None where a length is free."""


class RuntimeNetwork(ABC):
    """A file that is open in a runtime; a :class:`~senseapp.networks.network.Network`."""

    @property
    def fixed_batch(self) -> int | None:
        """Images that each call must have; None for any number."""
        return None

    @property
    @abstractmethod
    def output_names(self) -> tuple[str, ...]:
        """Of the tensors in what :meth:`run` returns, in their order."""

    @abstractmethod
    def run(self, batch: Tensor) -> object:
        """Return the raw output for images (N, C, H, W), nested as the network's own."""


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


class ForeignFiles:
    """Opens and compares files that any program wrote; this one refuses them."""

    def open(self, content: bytes, *, threads: int | None = None) -> ForeignFile:
        """Open a file and run it as it is, on ``threads`` or as many as torch has.

        Raises:
            InvalidInput: it is no file of this runtime, cannot be opened, or takes other things than images.
        """
        raise InvalidSpec("Files of other programs are not run in this runtime. Choose onnxruntime.")

    def whole(self, path: Path) -> bytes:
        """Return the content of a file of this person's own disk, with parts that lie beside it; may raise OSError."""
        return path.read_bytes()

    def tensor_divergence(
        self, reference: bytes, candidate: bytes, images: tuple[Tensor, Tensor], *, progress: Callable[[str], None]
    ) -> TensorDivergence | None:
        """Return how far tensors inside of two files differ, on ``images`` as each takes them; None where unknown."""
        return None

    def quantized(self, content: bytes, reference: bytes) -> QuantizedFile:
        """Return a quantized file that was made of the float file ``reference``, for a look at its nodes.

        Raises:
            InvalidSpec: none of its nodes can be put back in float.
        """
        raise InvalidSpec("Nodes of quantized files are not looked at in this runtime. Choose onnxruntime.")


def relative_difference(mine: NDArray[Any], other: NDArray[Any]) -> float:
    """Return ‖other − mine‖ / ‖mine‖; infinite where a number of the other is not finite, 0 where both are nothing.

    >>> relative_difference(np.array([3.0, 4.0]), np.array([3.0, 4.5]))
    0.1
    """
    if not np.isfinite(other).all():
        return float("inf") if np.isfinite(mine).all() else 0.0
    apart, size = float(np.linalg.norm(other - mine)), float(np.linalg.norm(mine))
    if apart == 0:
        return 0.0
    return apart / size if size else float("inf")
