"""Files that are open in a runtime: what they declare, how images are fed, and what they return."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from senseapp.core.errors import InvalidSpec, UnsupportedModel
from senseapp.core.texts import printable_text
from senseapp.networks.network import nested
from senseapp.networks.onnx.metadata import image_shape, is_channels_last
from senseapp.networks.onnx.modules import ImageInput

Shape = tuple[int | None, ...]
"""Of a tensor as a file declares it; None where a length is free."""
Array = NDArray[Any]
_MOST_SECONDS, _SMALL_SECONDS, _SECONDS_PER_BYTE = 120.0, 15.0, 2e-5  # of one call: more for larger files


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """Declarations of a file: of the images, whose type is written as ``float32``; name and shape of each output."""

    input_name: str
    input_shape: Shape
    input_type: str
    outputs: tuple[tuple[str, Shape], ...]
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def channels_last(self) -> bool:
        """Whether images are (N, H, W, C)."""
        return is_channels_last(self.input_shape)

    @property
    def image_shape(self) -> Shape:
        """Of one image, (C, H, W)."""
        return image_shape(self.input_shape)

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


class OpenFile(ABC):
    """A file in memory, open in its runtime on the processor, that takes one batch of images.

    Attributes:
        title, about: what such files are called, and a sentence on how it runs, if there is one to say.
        of_any_program: whether outputs that do not list the images are refused.
        nesting: of its outputs in the network (:func:`~senseapp.networks.network.nesting_text`), if the file says so.
        reader: what the network of an uploaded file does with its outputs.
    """

    title: str
    facts: FileFacts
    about: str = ""
    of_any_program: bool = True
    nesting: str | None
    reader: Callable[[object], object] | None = None
    _chosen: tuple[str, ...]

    @property
    def fixed_batch(self) -> int | None:
        """Images that each call computes; None for any number."""
        return self.facts.input_shape[0]

    @property
    def output_names(self) -> tuple[str, ...]:
        """Of the tensors in what :meth:`run` returns."""
        return self._chosen

    def choose(self, names: tuple[str, ...]) -> None:
        """Return only these outputs from now on; raises InvalidSpec where the file has none of that name."""
        known = [name for name, _ in self.facts.outputs]
        missing = next((name for name in names if name not in known), None)
        if missing is not None:
            raise InvalidSpec(f"The file has no output “{missing}”. Its outputs are {', '.join(known[:8])}.")
        self._chosen = names
        self.nesting = None if len(names) < len(known) else self.nesting

    def fed(self, images: Tensor) -> Tensor:
        """Return float32 images (N, C, H, W) as the input takes them, filled up to the file's batch by the first."""
        dtype: torch.dtype = getattr(torch, self.facts.input_type)
        taken = ImageInput(channels_last=self.facts.channels_last, dtype=dtype, batch=self.facts.input_shape[0])
        return taken.of(images.detach().cpu()).to(dtype)

    def run(self, batch: Tensor) -> object:
        """Return the chosen outputs for ``batch``, (N, C, H, W) of at most :attr:`fixed_batch` images, float32.

        They are nested as the network's own output where the file says how; a single tensor where it is one.

        Raises:
            InvalidSpec: the runtime fails on it, or takes longer than a file of its size may.
            UnsupportedModel: an output does not list the images one by one.
        """
        found = [
            self._of_images(name, each, batch) for name, each in self.arrays(self._chosen, self.fed(batch)).items()
        ]
        if self.nesting is not None:
            return nested(found, self.nesting)
        whole = found[0] if len(found) == 1 else tuple(found)
        return whole if self.reader is None else self.reader(whole)

    @abstractmethod
    def arrays(self, names: Sequence[str], fed: Tensor) -> dict[str, Array]:
        """Return outputs of these names for an input of :meth:`fed`, as the runtime returns them."""

    def _of_images(self, name: str, values: Array, batch: Tensor) -> Tensor:
        count = self.facts.input_shape[0] or len(batch)
        lists_images = isinstance(values, np.ndarray) and values.ndim > 0 and len(values) == count
        if not lists_images and (self.of_any_program or not isinstance(values, np.ndarray)):
            shape = getattr(values, "shape", type(values).__name__)
            raise UnsupportedModel(
                f"The output “{printable_text(name)}” is {shape} for {count} images: it does not list them one by one."
            )
        found = torch.from_numpy(np.ascontiguousarray(values[: len(batch)] if lists_images else values))
        return found.float() if found.is_floating_point() else found


def longest_call(content: bytes) -> float:
    """Return the seconds that a call of a file may take."""
    return min(_MOST_SECONDS, _SMALL_SECONDS + _SECONDS_PER_BYTE * len(content))
