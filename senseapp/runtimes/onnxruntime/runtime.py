"""An ONNX file that is open in a runtime: in onnxruntime, with the optimisations that users get by default."""

from __future__ import annotations

import json
import math
import tempfile
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from senseapp.core.errors import InvalidSpec, first_line_of, is_about_memory
from senseapp.core.process import quiet
from senseapp.networks.network import OUTPUTS, nested
from senseapp.networks.onnx.modules import ImageInput
from senseapp.networks.onnx.operators.in_runtime import open_session
from senseapp.runtimes.call_times import RUNS, Kernel, usual_input

_AT_ONCE = 8  # images of which a file holds the sums that may saturate
_OF_8_BITS = ("int8", "uint8")
_KERNEL = "_kernel_time"  # behind the name of a node, in a profile


class OnnxSession(ABC):
    """An open ONNX file with one input, and outputs that ONNX has flattened.

    Attributes:
        nesting: how the outputs were nested in the network (:func:`~senseapp.networks.network.nesting_text`), if so.
        images: how images become the input of an uploaded file; None for files that take them as they are.
        reader: what the network of an uploaded file does with its outputs.
        fixed_batch: images that each call must have; None for any number.
        input_type: of the numbers that it takes, as ``float32``.
    """

    nesting: str | None
    fixed_batch: int | None
    input_type: str
    images: ImageInput | None = None
    reader: Callable[[object], object] | None = None

    @abstractmethod
    def tensors(self, images: Tensor) -> dict[str, Tensor]:
        """Return all outputs for ``images``, as many as :attr:`fixed_batch` says, by name."""

    def run(self, batch: Tensor) -> object:
        """Return the output for ``batch``, (N, C, H, W) of as many images as :attr:`fixed_batch` says, float32.

        It is nested as the network's own output: a single tensor where it is one. Uploaded files take fewer images too.
        """
        if self.images is None:
            outputs = [*self.tensors(batch).values()]
        else:
            given = replace(self.images, batch=self.fixed_batch).of(batch)
            outputs = [each[: len(batch)] for each in self.tensors(given).values()]
        found = [each.float() if each.is_floating_point() else each for each in outputs]
        if self.nesting is not None:
            return nested(found, self.nesting)
        whole = found[0] if len(found) == 1 else tuple(found)
        return whole if self.reader is None else self.reader(whole)

    def as_input(self, images: Tensor) -> npt.NDArray[Any]:
        """Return images as the file takes them: float32 but for uploaded files."""
        return np.ascontiguousarray(images.detach().cpu().numpy().astype(self.input_type))


class RuntimeModel(OnnxSession):
    """An ONNX file in memory, open in onnxruntime on the CPU.

    It runs on ``threads``, which times are taken on; where only its outputs count, on as many as torch does. Without
    ``fused``, a QDQ file computes its products in float between roundings, so nothing saturates, on a few images each.

    Raises:
        InvalidSpec: the runtime cannot open it.
    """

    def __init__(self, content: bytes, *, threads: int | None = None, fused: bool = True) -> None:
        try:
            self._session = open_session(content, threads=threads, fused=fused, severity=3)
        except Exception as error:  # onnxruntime raises one class for each of its states, all undocumented
            if is_about_memory(error):
                raise
            raise InvalidSpec(f"onnxruntime cannot open this network: {first_line_of(error)}.") from error
        (self._input,) = self._session.get_inputs()
        size = self._input.shape[0]
        self.fixed_batch = size if isinstance(size, int) else None if fused else _AT_ONCE
        self.input_type = np.dtype(INPUT_TYPES.get(self._input.type, np.float32)).name
        self.nesting = self._session.get_modelmeta().custom_metadata_map.get(OUTPUTS)

    def tensors(self, images: Tensor) -> dict[str, Tensor]:
        """Return all outputs for ``images``, as many as :attr:`fixed_batch` says, by name."""
        names = [each.name for each in self._session.get_outputs()]
        found = self._session.run(names, {self._input.name: self.as_input(images)})
        return {name: torch.from_numpy(values) for name, values in zip(names, found, strict=True)}


def kernels(content: bytes, *, threads: int, batch: int) -> list[Kernel]:
    """Return the kernels of a network that runs in onnxruntime a few times on :func:`usual_input`."""
    durations: defaultdict[tuple[str, str, int, bool], list[float]] = defaultdict(list)
    for name, about, seconds in profiled(content, threads=threads, batch=batch):
        first: dict[str, list[int]] = next(iter(about["input_type_shape"]), {})
        values, in_integers = math.prod(next(iter(first.values()), [])), not first.keys().isdisjoint(_OF_8_BITS)
        durations[name, about["op_name"], values, in_integers].append(seconds)
    return [Kernel(*key[:2], float(np.median(each[1:])), *key[2:]) for key, each in durations.items()]


def profiled(
    content: bytes, *, threads: int, batch: int, runs: int = RUNS, optimized: bool = True
) -> list[tuple[str, dict[str, Any], float]]:
    """Return name, types and shapes, and seconds of each kernel of each run, by onnxruntime's profile."""
    with tempfile.TemporaryDirectory() as folder:
        opened = open_session(
            content, threads=threads, severity=3, profile=str(Path(folder) / "profile"), optimised=optimized
        )
        feeds = {
            each.name: usual_input(
                [size if isinstance(size, int) else batch for size in each.shape],
                INPUT_TYPES.get(each.type, np.float32),
            )
            for each in opened.get_inputs()
        }
        with quiet():
            for _ in range(runs):
                opened.run(None, feeds)
        events = json.loads(Path(opened.end_profiling()).read_bytes())
    return [
        (event["name"].removesuffix(_KERNEL), event["args"], event["dur"] / 1e6)
        for event in events
        if event.get("cat") == "Node" and event["name"].endswith(_KERNEL)
    ]


INPUT_TYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
    "tensor(int8)": np.int8,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
}
"""Of inputs, by onnxruntime's names."""
