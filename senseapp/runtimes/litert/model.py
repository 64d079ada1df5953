"""LiteRT files that are open in LiteRT's interpreter: those of the product, and those of any program for a check."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from threading import Thread
from typing import Any

import numpy as np
import torch
from ai_edge_litert.interpreter import Interpreter
from torch import Tensor

from senseapp.core.errors import InvalidSpec, OutOfMemory, SenseError, UnsupportedModel, first_line_of, is_about_memory
from senseapp.core.texts import plural, printable_text
from senseapp.networks.network import OUTPUTS, nested
from senseapp.networks.onnx.metadata import is_channels_last
from senseapp.runtimes.foreign import Array, FileFacts, OpenFile, late, longest_call
from senseapp.runtimes.litert.file import parsed, texts

_NODE = re.compile(r"Node number (\d+) \((\w+)\) failed to (?:prepare|invoke)\.?")
_SOURCE = re.compile(r"^\S+\.cc(?::\d+)? ")  # of LiteRT's own code


def interpreter_of(content: bytes, threads: int | None, *, all_tensors: bool = False) -> Any:
    """Open a file in LiteRT's interpreter, with the kernels of XNNPACK; all tensors can be read if ``all_tensors``.

    Raises:
        InvalidSpec: LiteRT cannot open it.
        UnsupportedModel: it does not take one batch of images.
        OutOfMemory: there is not enough memory for it.
    """
    try:
        parsed(content)  # the interpreter ends the process on what is no file
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of the memory that all tensors take
            found = Interpreter(
                model_content=content,
                num_threads=threads or torch.get_num_threads(),
                experimental_preserve_all_tensors=all_tensors,
            )
        found.allocate_tensors()
        inputs = [tuple(map(int, each["shape"])) for each in found.get_input_details()]
        outputs = len(found.get_output_details())
    except (RuntimeError, ValueError, MemoryError) as error:
        if isinstance(error, InvalidSpec):
            raise
        raise _refusal("open", error) from error
    if [len(shape) for shape in inputs] != [4] or not outputs:
        raise UnsupportedModel(
            f"The file takes {', '.join(map(str, inputs)) or 'nothing'} and has "
            f"{plural(outputs, 'output')}; one batch of images (N, H, W, C) and at least one "
            "output are wanted. Convert the part of the network that takes images."
        )
    return found


def _refusal(what: str, error: Exception) -> SenseError:
    """Return an error of the interpreter as a sentence: the operator, the cause and what to do."""
    if is_about_memory(error):
        return OutOfMemory("The file's network needs more memory than there is.")
    said = str(error)
    if "custom op" in said or "Select TensorFlow op" in said:
        cause = "it has operators that LiteRT itself does not have"
    elif not said or "failed to reshape runtime" in said:
        cause = "values do not have the shapes that it declares, or need more memory than it may take"
    else:
        place, plain = _NODE.search(said), _SOURCE.sub("", _NODE.sub("", said)).partition(" in XNNPACK delegate")[0]
        cause = first_line_of(ValueError(re.sub(r"\.(?=[A-Z])", ". ", plain)), 200)
        cause = cause if place is None else f"operator {place[1]} ({place[2]}) is wrong: {cause}"
    return InvalidSpec(
        printable_text(f"LiteRT cannot {what} this file: {cause.rstrip('. ')}. Convert the network again for LiteRT.")
    )


class LiteRtModel:
    """A file of the product, in memory, for a fixed number of images (N, C, H, W); it returns float32."""

    fixed_batch: int | None

    def __init__(self, content: bytes, *, threads: int | None = None) -> None:
        self._interpreter = interpreter_of(content, threads)
        (self._input,) = self._interpreter.get_input_details()
        self.input_shape = [int(size) for size in self._input["shape"]]
        self.fixed_batch = self.input_shape[0]
        nesting = texts(content).get(OUTPUTS)
        self._nesting = None if nesting is None else nesting.decode("utf-8", "replace")

    def run(self, batch: Tensor) -> object:
        """Return the output for as many images as :attr:`fixed_batch` says, nested as the network's own."""
        found = called(self._interpreter, batch.detach().cpu().contiguous().numpy())
        tensors = [torch.from_numpy(each) for each in found]
        return tensors[0] if self._nesting is None else nested(tensors, self._nesting)


class LiteRtFile(OpenFile):
    """A file of any program, in memory, open in LiteRT; numbers in integers are scaled as it says.

    Raises:
        InvalidInput: as :func:`interpreter_of` does.
    """

    title = "LiteRT"

    def __init__(self, content: bytes, *, threads: int | None = None) -> None:
        self._interpreter = interpreter_of(content, threads)
        (taken,) = self._interpreter.get_input_details()
        shape = tuple(int(size) for size in taken["shape"])
        is_scaled = bool(_scale_of(taken)[0])
        self.facts = FileFacts(
            input_name=taken["name"],
            input_shape=shape,
            input_type="float32" if is_scaled else np.dtype(taken["dtype"]).name,
            channels_last=is_channels_last(list(shape)),
            outputs=tuple(
                (each["name"], tuple(int(size) for size in each["shape"]))
                for each in self._interpreter.get_output_details()
            ),
            metadata={name: text.decode("utf-8", "replace") for name, text in texts(content).items()},
        )
        self._chosen = tuple(name for name, _ in self.facts.outputs)
        self._nesting = self.facts.metadata.get(OUTPUTS)
        self._most_seconds, self._is_known = longest_call(content), False

    def arrays(self, names: Sequence[str], fed: Tensor) -> dict[str, Array]:
        """Return outputs of these names, in float32 where the file scales them."""
        values = np.ascontiguousarray(fed.numpy())
        try:
            found = called(self._interpreter, values) if self._is_known else self._first_call(values)
        except (RuntimeError, ValueError, MemoryError) as error:
            if isinstance(error, InvalidSpec):
                raise
            raise _refusal("run", error) from error
        known = dict(zip((name for name, _ in self.facts.outputs), found, strict=True))
        return {name: known[name] for name in names}

    def _first_call(self, values: Array) -> list[Array]:
        """Return the outputs of a call that is left alone once it is late; in a file without loops all take as long."""
        found: list[list[Array] | Exception] = []

        def call() -> None:
            try:
                found.append(called(self._interpreter, values))
            except Exception as error:
                found.append(error)

        thread = Thread(target=call, daemon=True)
        thread.start()
        thread.join(self._most_seconds)
        if not found:
            raise late(self._most_seconds)
        if isinstance(found[0], Exception):
            raise found[0]
        self._is_known = True
        return found[0]


def called(interpreter: Any, values: Array) -> list[Array]:
    """Return the outputs of a call, in the order of the file."""
    (taken,) = interpreter.get_input_details()
    interpreter.set_tensor(taken["index"], _stored(values, taken))
    interpreter.invoke()
    return [scaled(interpreter.get_tensor(each["index"]), each) for each in interpreter.get_output_details()]


def _scale_of(tensor: Mapping[str, Any]) -> tuple[float, int]:
    """Return the scale and the zero point of an input or output; scale 0 where it has none."""
    parameters = tensor["quantization_parameters"]
    scales, zeros = parameters["scales"], parameters["zero_points"]
    return (float(scales[0]), int(zeros[0])) if len(scales) else (0.0, 0)


def _stored(values: Array, tensor: Mapping[str, Any]) -> Array:
    kind, (scale, zero) = np.dtype(tensor["dtype"]), _scale_of(tensor)
    if kind.kind == "f" or not scale:
        return values.astype(kind)
    limits = np.iinfo(kind)
    stored: Array = np.clip(np.round(values / scale) + zero, limits.min, limits.max).astype(kind)
    return stored


def scaled(values: Array, tensor: Mapping[str, Any]) -> Array:
    """Return a tensor of the interpreter, with its details, in float32 where the file scales it."""
    scale, zero = _scale_of(tensor)
    if values.dtype.kind == "f":
        return values.astype(np.float32)
    return (values.astype(np.float32) - zero) * np.float32(scale) if scale else values
