"""An ONNX file that is open in OpenVINO."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor

from senseapp.compat.openvino_internals import openvino
from senseapp.core.errors import InvalidSpec, first_line_of, is_about_memory
from senseapp.networks.network import OUTPUTS
from senseapp.runtimes.onnx_network import OnnxSession, processor

_CORE = openvino.Core()


class OpenVinoModel(OnnxSession):
    """An ONNX file in memory, open in OpenVINO on the CPU.

    It is compiled for the shape of its calls, which makes it up to twice as quick as for any number of images, and
    computes in float32 where it is not int8: OpenVINO would choose 16 bits on some processors. It runs on ``threads``,
    which times are taken on; where only its outputs count, on as many as torch does.

    Raises:
        InvalidSpec: OpenVINO cannot open it.
    """

    def __init__(self, content: bytes, *, threads: int | None = None) -> None:
        self._content, self._threads = content, threads or torch.get_num_threads()
        network = read(content)
        (self._input,) = network.inputs
        model = onnx.load_from_string(content)
        self._names = tuple(each.name for each in model.graph.output)
        self.nesting = next((each.value for each in model.metadata_props if each.key == OUTPUTS), None)
        self._requests: OrderedDict[tuple[int, ...], Any] = OrderedDict()

    @property
    def fixed_batch(self) -> int | None:
        """Images that each call must have; None for any number."""
        size = self._input.partial_shape[0]
        return size.get_length() if size.is_static else None

    @property
    def input_type(self) -> str:
        """Type of the numbers that it takes, as ``float32``."""
        return str(np.dtype(self._input.element_type.to_dtype()))

    @property
    def output_names(self) -> tuple[str, ...]:
        """Of the tensors in what :meth:`run` returns."""
        return self._names

    def tensors(self, images: Tensor) -> dict[str, Tensor]:
        """Return all outputs for ``images``, as many as :attr:`fixed_batch` says, by name.

        Raises:
            InvalidSpec: OpenVINO cannot compile the network for such images.
        """
        values = self.as_input(images)
        found = self._request(values.shape).infer([values], share_inputs=True)
        return {name: torch.from_numpy(found[place]) for place, name in enumerate(self._names)}

    def _network(self) -> Any:
        """Return the network anew: compiling it for a shape changes it."""
        return read(self._content)

    def _request(self, shape: tuple[int, ...]) -> Any:
        if shape not in self._requests:
            self._requests[shape] = compiled(self._network(), shape, threads=self._threads).create_infer_request()
            if len(self._requests) > 2:  # of a batch, and of the rest that is smaller
                self._requests.popitem(last=False)
        self._requests.move_to_end(shape)
        return self._requests[shape]


def read(file: bytes | Path) -> Any:
    """Return the network of an ONNX file; from a path, also of a file of OpenVINO's own format.

    Raises:
        InvalidSpec: OpenVINO cannot read it.
    """
    try:
        return _CORE.read_model(io.BytesIO(file) if isinstance(file, bytes) else file)
    except RuntimeError as error:
        raise _refused(error) from error


def compiled(network: Any, *shapes: Sequence[int], threads: int, profiled: bool = False) -> Any:
    """Return a network of :func:`read`, compiled for inputs of ``shapes`` on ``threads``; ``profiled`` takes times.

    Raises:
        InvalidSpec: OpenVINO cannot compile it so.
    """
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "ENABLE_CPU_PINNING": False,  # other processes time files too
        "PERF_COUNT": profiled,
    }
    try:
        network.reshape(dict(enumerate(map(list, shapes))))
        return _CORE.compile_model(network, "CPU", settings)
    except RuntimeError as error:
        raise _refused(error) from error


def _refused(error: RuntimeError) -> Exception:
    """Return what to raise: OpenVINO's message begins with lines on where in its code it was raised."""
    if is_about_memory(error):
        return error
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = next((line.removeprefix(_CAUSE) for line in lines if line.startswith(_CAUSE)), None)
    told = next((line for line in lines if not line.startswith(_OWN_CODE)), "")
    return InvalidSpec(f"OpenVINO cannot open this network: {first_line_of(RuntimeError(cause or told))}.")


_OWN_CODE, _CAUSE = ("Exception from", "Check '"), "-- "


def machine() -> str:
    """Return the processor and the runtime: ``AMD EPYC without VNNI, OpenVINO 2026.4.1``."""
    return f"{processor()}, OpenVINO {openvino.__version__.partition('-')[0]}"
