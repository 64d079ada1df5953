"""LiteRT files that are open in LiteRT's interpreter: those of the product, and those of any program for a check."""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from typing import Any

import numpy as np
import torch
from ai_edge_litert.interpreter import Interpreter
from torch import Tensor

from senseapp.core.errors import InvalidSpec, OutOfMemory, UnsupportedModel, first_line_of, is_about_memory
from senseapp.core.texts import plural, printable_text
from senseapp.networks.network import OUTPUTS
from senseapp.networks.onnx.operators.in_runtime import late
from senseapp.runtimes.litert.file import parsed, texts
from senseapp.runtimes.open_file import Array, FileFacts, OpenFile, longest_call

_NODE = re.compile(r"Node number (\d+) \((\w+)\) failed to (?:prepare|invoke)\.?")
_SOURCE = re.compile(r"^\S+\.cc(?::\d+)? ")  # of LiteRT's own code


def interpreter_of(content: bytes, threads: int | None, *, all_tensors: bool = False) -> Any:
    """Open a file in LiteRT's interpreter, with the kernels of XNNPACK; all tensors can be read if ``all_tensors``.

    Raises:
        InvalidSpec: LiteRT cannot open it.
        UnsupportedModel: it does not take one batch of images.
        OutOfMemory: there is not enough memory for it.
    """
    with _refusals("open"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of the memory that all tensors take
        parsed(content)  # the interpreter ends the process on what is no file
        found = Interpreter(
            model_content=content,
            num_threads=threads or torch.get_num_threads(),
            experimental_preserve_all_tensors=all_tensors,
        )
        found.allocate_tensors()
        inputs = [tuple(map(int, each["shape"])) for each in found.get_input_details()]
        outputs = len(found.get_output_details())
    if [len(shape) for shape in inputs] != [4] or not outputs:
        raise UnsupportedModel(
            f"The file takes {', '.join(map(str, inputs)) or 'nothing'} and has "
            f"{plural(outputs, 'output')}; one batch of images (N, H, W, C) and at least one "
            "output are wanted. Convert the part of the network that takes images."
        )
    return found


@contextmanager
def _refusals(what: str) -> Iterator[None]:
    """Raise errors of the interpreter as a sentence: the operator, the cause and what to do."""
    try:
        yield
    except InvalidSpec:
        raise
    except (RuntimeError, ValueError, MemoryError) as error:
        if is_about_memory(error):
            raise OutOfMemory("The file's network needs more memory than there is.") from error
        sentence = f"LiteRT cannot {what} this file: {_cause(str(error))}. Convert the network again for LiteRT."
        raise InvalidSpec(printable_text(sentence)) from error


def _cause(said: str) -> str:
    if "custom op" in said or "Select TensorFlow op" in said:
        return "it has operators that LiteRT itself does not have"
    if not said or "failed to reshape runtime" in said:
        return "values do not have the shapes that it declares, or need more memory than it may take"
    place, plain = _NODE.search(said), _SOURCE.sub("", _NODE.sub("", said)).partition(" in XNNPACK delegate")[0]
    cause = first_line_of(ValueError(re.sub(r"\.(?=[A-Z])", ". ", plain)), 200).rstrip(". ")
    return cause if place is None else f"operator {place[1]} ({place[2]}) is wrong: {cause}"


class LiteRtFile(OpenFile):
    """A file in memory, open in LiteRT; numbers in integers are scaled as it says.

    Raises InvalidInput as :func:`interpreter_of` does.
    """

    title = "LiteRT"

    def __init__(self, content: bytes, *, threads: int | None = None) -> None:
        self._interpreter = interpreter_of(content, threads)
        (taken,), outputs = self._interpreter.get_input_details(), self._interpreter.get_output_details()
        self.facts = FileFacts(
            input_name=taken["name"],
            input_shape=tuple(map(int, taken["shape"])),
            input_type="float32" if _scale_of(taken)[0] else np.dtype(taken["dtype"]).name,
            outputs=tuple((each["name"], tuple(map(int, each["shape"]))) for each in outputs),
            metadata={name: text.decode("utf-8", "replace") for name, text in texts(content).items()},
        )
        self._chosen = tuple(name for name, _ in self.facts.outputs)
        self.nesting = self.facts.metadata.get(OUTPUTS)
        self._most_seconds, self._is_known = longest_call(content), False

    def arrays(self, names: Sequence[str], fed: Tensor) -> dict[str, Array]:
        """Return outputs of these names, in float32 where the file scales them."""
        values = np.ascontiguousarray(fed.numpy())
        with _refusals("run"):
            found = called(self._interpreter, values) if self._is_known else self._first_call(values)
        known = dict(zip((name for name, _ in self.facts.outputs), found, strict=True))
        return {name: known[name] for name in names}

    def _first_call(self, values: Array) -> list[Array]:
        """Return the outputs of a call that is left alone once it is late; in a file without loops all take as long."""
        found = Future[list[Array]]()

        def call() -> None:
            try:
                found.set_result(called(self._interpreter, values))
            except Exception as error:
                found.set_exception(error)

        Thread(target=call, daemon=True).start()
        try:
            outputs = found.result(timeout=self._most_seconds)
        except TimeoutError as error:
            raise late(self._most_seconds) from error
        self._is_known = True
        return outputs


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
