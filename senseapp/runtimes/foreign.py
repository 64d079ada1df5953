"""Files of any program, run as they are: any layout and batch; ONNX files in onnxruntime, with all its operators."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from torch import Tensor

from senseapp.core.errors import (
    InvalidCheckpoint,
    InvalidSpec,
    OutOfMemory,
    UnsupportedModel,
    first_line_of,
    is_about_memory,
)
from senseapp.core.texts import printable_text
from senseapp.networks.network import OUTPUTS, nested
from senseapp.networks.onnx.metadata import is_channels_last
from senseapp.networks.onnx.modules import ImageInput
from senseapp.networks.onnx.operators.in_runtime import open_session
from senseapp.networks.onnx.read import check_loops, parsed_model
from senseapp.runtimes.onnxruntime.rounding.saturation import on_other_processors
from senseapp.runtimes.onnxruntime.runtime import INPUT_TYPES

Shape = tuple[int | None, ...]
"""Of a tensor as a file declares it; None where a length is free."""
Array = NDArray[Any]
_MOST_SECONDS, _SMALL_SECONDS, _SECONDS_PER_BYTE = 120.0, 15.0, 2e-5  # of one call: more for larger files
_LOOK_SECONDS = 0.25  # between looks whether a call is late


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


class OpenFile(ABC):
    """A file in memory, open in its runtime on the processor, of which nothing but one input of images is known.

    Attributes:
        title: what such files are called.
        facts: what it declares.
        about: a sentence on how it runs, if there is one to say.
    """

    title: str
    facts: FileFacts
    about: str = ""
    _chosen: tuple[str, ...]
    _nesting: str | None

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
        self._nesting = None if len(names) < len(known) else self._nesting

    def on_other_processors(self) -> OpenFile | None:
        """Return it with the chosen outputs as :meth:`.Runtime.on_other_processors` does."""
        return None

    def fed(self, images: Tensor) -> Tensor:
        """Return float32 images (N, C, H, W) as the input takes them, filled up to the file's batch by the first."""
        dtype: torch.dtype = getattr(torch, self.facts.input_type)
        taken = ImageInput(channels_last=self.facts.channels_last, dtype=dtype, batch=self.fixed_batch)
        return taken.of(images).to(dtype)

    def run(self, batch: Tensor) -> object:
        """Return the chosen outputs for ``batch``, (N, C, H, W) of at most :attr:`fixed_batch` images, float32.

        Raises:
            InvalidSpec: the runtime fails on it, or takes longer than a file of its size may.
            UnsupportedModel: an output does not list the images one by one.
        """
        found = [
            self._of_images(name, each, batch) for name, each in self.arrays(self._chosen, self.fed(batch)).items()
        ]
        if self._nesting is not None:
            return nested(found, self._nesting)
        return found[0] if len(found) == 1 else tuple(found)

    @abstractmethod
    def arrays(self, names: Sequence[str], fed: Tensor) -> dict[str, Array]:
        """Return outputs of these names for an input of :meth:`fed`, as the runtime returns them."""

    def _of_images(self, name: str, values: Array, batch: Tensor) -> Tensor:
        count = self.fixed_batch or len(batch)
        if not isinstance(values, np.ndarray) or not values.ndim or len(values) != count:
            shape = getattr(values, "shape", type(values).__name__)
            raise UnsupportedModel(
                f"The output “{printable_text(name)}” is {shape} for {count} images: it does not list them one by one."
            )
        found = torch.from_numpy(values[: len(batch)].copy())
        return found.float() if found.is_floating_point() else found


class ForeignFile(OpenFile):
    """An ONNX file in memory, open in onnxruntime on the processor.

    Args:
        content: of the file.
        threads: that it runs on; None for as many as torch has.
        extra: values inside of the graph that :meth:`arrays` returns too; the graph is then run node by node, without
            the runtime's optimizations.
        fused: whether a QDQ file computes on integers, rather than in float between roundings.

    Raises:
        InvalidCheckpoint: it is no ONNX file, or one with weights in other files.
        UnsupportedModel: it takes anything but one batch of images.
        InvalidSpec: onnxruntime cannot open it.
    """

    title = "ONNX"

    def __init__(
        self, content: bytes, *, threads: int | None = None, extra: Sequence[str] = (), fused: bool = True
    ) -> None:
        check_loops(parsed_model(content))  # refuses what lies about its sizes before the runtime allocates them
        self._content, self._threads = content, threads
        try:
            self._session = open_session(content, threads=threads, fused=fused, optimised=not extra)
        except Exception as error:  # onnxruntime raises one class for each of its states, all undocumented
            raise _refusal("open", error) from error
        self.facts = _facts(self._session)
        self._chosen = tuple(name for name, _ in self.facts.outputs)
        nesting = self._session.get_modelmeta().custom_metadata_map.get(OUTPUTS)
        self._nesting = nesting if nesting and not extra else None
        self._most_seconds = longest_call(content)

    def on_other_processors(self) -> OpenFile | None:
        """Return a file in int8 as processors of the other kind compute it; None where they do alike."""
        other = on_other_processors(self._content)
        if other is None:
            return None
        found = ForeignFile(other, threads=self._threads, fused=False)
        found.choose(self._chosen)
        return found

    def arrays(self, names: Sequence[str], fed: Tensor) -> dict[str, Array]:
        """Return outputs of these names for an input of :meth:`fed`, as the runtime returns them."""
        options = onnxruntime.RunOptions()
        options.log_severity_level = 4
        values = {self.facts.input_name: np.ascontiguousarray(fed.numpy())}
        _watch()
        _CALLS[id(options)] = time.monotonic() + self._most_seconds, options
        try:
            found = self._session.run(list(names), values, options)
        except Exception as error:
            if options.terminate:
                raise late(self._most_seconds) from error
            raise _refusal("run", error) from error
        finally:
            del _CALLS[id(options)]
        return dict(zip(names, found, strict=True))


def _stop_late_calls() -> None:
    """Stop late calls: a graph may hold a loop that ends for no image, or not for one. No call takes longer for it."""
    while True:
        for latest, options in list(_CALLS.values()):
            options.terminate = options.terminate or time.monotonic() > latest
        time.sleep(_LOOK_SECONDS)


_CALLS: dict[int, tuple[float, Any]] = {}
"""When calls that are under way are late, and their options."""
_watch = cache(threading.Thread(target=_stop_late_calls, daemon=True).start)


def longest_call(content: bytes) -> float:
    """Return the seconds that a call of a file may take."""
    return min(_MOST_SECONDS, _SMALL_SECONDS + _SECONDS_PER_BYTE * len(content))


def late(seconds: float) -> InvalidSpec:
    """Return the error for a call that took longer."""
    return InvalidSpec(f"The file takes more than {seconds:.0f} s for one call, so it was stopped.")


def _refusal(what: str, error: Exception) -> Exception:
    if is_about_memory(error):
        return OutOfMemory("The file's network needs more memory than there is.")
    return InvalidSpec(printable_text(f"onnxruntime cannot {what} this file: {first_line_of(error, 400)}."))


def _facts(session: Any) -> FileFacts:
    inputs = session.get_inputs()
    if len(inputs) != 1:
        names = ", ".join(f"“{printable_text(each.name)}”" for each in inputs[:8]) or "none"
        raise UnsupportedModel(f"The file takes {len(inputs)} inputs ({names}); a check needs images as its only one.")
    (declared,) = inputs
    shape = _shape(declared.shape)
    if len(shape) != 4 or declared.type not in INPUT_TYPES:
        raise UnsupportedModel(
            f"The input “{printable_text(declared.name)}” is {declared.type} of {len(shape)} axes; images are numbers "
            "(N, C, H, W) or (N, H, W, C)."
        )
    metadata: Mapping[str, str] = session.get_modelmeta().custom_metadata_map
    return FileFacts(
        input_name=declared.name,
        input_shape=shape,
        input_type=np.dtype(INPUT_TYPES[declared.type]).name,
        channels_last=is_channels_last([length or 0 for length in shape]),
        outputs=tuple((each.name, _shape(each.shape)) for each in session.get_outputs()),
        metadata=dict(metadata),
    )


def _shape(declared: Sequence[Any]) -> Shape:
    return tuple(length if isinstance(length, int) and length > 0 else None for length in declared)


def with_weights_beside(path: Path) -> bytes:
    """Return an ONNX file whose weights are all in it: those in other files are read, if these lie beside it.

    For files of the person who runs the command: an uploaded file has nothing beside it.

    Raises:
        InvalidCheckpoint: a file of weights is not in the same folder, is missing or too short.
    """
    content = path.read_bytes()
    try:
        model = onnx.ModelProto.FromString(content)
    except DecodeError:
        return content  # refused where it is opened, as any file that is no ONNX
    if all(each.data_location != onnx.TensorProto.EXTERNAL for each in model.graph.initializer):
        return content
    try:
        onnx.load_external_data_for_model(model, str(path.parent))  # it reads nothing outside of the folder
        whole: bytes = model.SerializeToString()
    except Exception as error:  # of onnx, protobuf and the disk
        raise InvalidCheckpoint(
            f"The weights of {path.name} are in another file, which cannot be read beside it: {first_line_of(error)}. "
            'Save both as one file: onnx.save(onnx.load("model.onnx"), "one.onnx").'
        ) from error
    return whole


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
