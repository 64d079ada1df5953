"""ONNX files that are open in onnxruntime: those of the product, and those of any program for a check."""

import json
import math
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from senseapp.core.errors import InvalidSpec, OutOfMemory, UnsupportedModel, first_line_of, is_about_memory
from senseapp.core.process import quiet
from senseapp.core.texts import printable_text
from senseapp.networks.network import OUTPUTS
from senseapp.networks.onnx.operators.in_runtime import open_session, run_in_time
from senseapp.networks.onnx.read import check_loops, parsed_model
from senseapp.runtimes.call_times import RUNS, Kernel, usual_input
from senseapp.runtimes.open_file import Array, FileFacts, OpenFile, Shape, longest_call

_AT_ONCE = 8  # images of which a file holds the sums that may saturate
_OF_8_BITS = ("int8", "uint8")
_KERNEL = "_kernel_time"  # behind the name of a node, in a profile


class RuntimeModel(OpenFile):
    """An ONNX file in memory, open in onnxruntime on the CPU.

    It runs on ``threads``, which times are taken on; where only its outputs count, on as many as torch does. Without
    ``fused``, a QDQ file computes its products in float between roundings, so nothing saturates, on a few images each.
    Without ``optimised`` it runs node by node.

    Raises:
        InvalidSpec: the runtime cannot open it.
        UnsupportedModel: it takes several inputs, or none of numbers.
    """

    title = "ONNX"
    of_any_program = False

    def __init__(
        self, content: bytes, *, threads: int | None = None, fused: bool = True, optimised: bool = True
    ) -> None:
        try:
            self._session = open_session(content, threads=threads, fused=fused, optimised=optimised)
        except Exception as error:  # onnxruntime raises one class for each of its states, all undocumented
            raise _refusal("open", error) from error
        metadata: dict[str, str] = self._session.get_modelmeta().custom_metadata_map
        self.facts = _facts(self._session.get_inputs(), self._session.get_outputs(), metadata)
        self._chosen = tuple(name for name, _ in self.facts.outputs)
        self.nesting = metadata.get(OUTPUTS) or None
        self._at_once = None if fused else _AT_ONCE

    @property
    def fixed_batch(self) -> int | None:
        """Images that each call computes; None for any number."""
        return self.facts.input_shape[0] or self._at_once

    def arrays(self, names: Sequence[str], fed: Tensor) -> dict[str, Array]:
        """Return outputs of these names for an input of :meth:`fed`, or images in the layout of the file."""
        feed = {self.facts.input_name: np.ascontiguousarray(fed.detach().cpu().numpy(), self.facts.input_type)}
        return dict(zip(names, self._run(list(names), feed), strict=True))

    def _run(self, names: list[str], feed: Mapping[str, Array]) -> list[Any]:
        return list(self._session.run(names, feed))


class ForeignFile(RuntimeModel):
    """An ONNX file of any program in memory, open in onnxruntime on the processor.

    Raises:
        InvalidCheckpoint: it is no ONNX file, or one with weights in other files.
        UnsupportedModel: it takes anything but one batch of images.
        InvalidSpec: onnxruntime cannot open it.
    """

    of_any_program = True

    def __init__(self, content: bytes, **how: Any) -> None:
        check_loops(parsed_model(content))  # refuses what lies about its sizes before the runtime allocates them
        super().__init__(content, **how)
        name, axes = printable_text(self.facts.input_name), len(self.facts.input_shape)
        if axes != 4:
            raise UnsupportedModel(
                f"The input “{name}” is {self.facts.input_type} of {axes} axes; images are numbers (N, C, H, W) or "
                "(N, H, W, C)."
            )
        self._most_seconds = longest_call(content)

    def _run(self, names: list[str], feed: Mapping[str, Array]) -> list[Any]:
        try:
            return run_in_time(self._session, names, feed, seconds=self._most_seconds)
        except InvalidSpec:
            raise
        except Exception as error:  # onnxruntime raises one class for each of its states, all undocumented
            raise _refusal("run", error) from error


def _refusal(what: str, error: Exception) -> Exception:
    """Return what to raise where onnxruntime cannot do ``what``, ``open`` or ``run``, with a file."""
    if is_about_memory(error):
        return OutOfMemory("The file's network needs more memory than there is.")
    return InvalidSpec(printable_text(f"onnxruntime cannot {what} this file: {first_line_of(error, 400)}."))


def _facts(inputs: Sequence[Any], outputs: Sequence[Any], metadata: Mapping[str, str]) -> FileFacts:
    if len(inputs) != 1:
        names = ", ".join(f"“{printable_text(each.name)}”" for each in inputs[:8]) or "none"
        raise UnsupportedModel(f"The file takes {len(inputs)} inputs ({names}); images are wanted as its only one.")
    (taken,) = inputs
    if taken.type not in INPUT_TYPES:
        raise UnsupportedModel(f"The input “{printable_text(taken.name)}” is {taken.type}; images are numbers.")
    return FileFacts(
        input_name=taken.name,
        input_shape=_shape(taken.shape),
        input_type=np.dtype(INPUT_TYPES[taken.type]).name,
        outputs=tuple((each.name, _shape(each.shape)) for each in outputs),
        metadata=dict(metadata),
    )


def _shape(declared: Sequence[Any]) -> Shape:
    return tuple(length if isinstance(length, int) and length > 0 else None for length in declared)


def kernels(content: bytes, *, threads: int, batch: int) -> list[Kernel]:
    """Return the kernels of a network that runs in onnxruntime a few times on :func:`usual_input`."""
    with tempfile.TemporaryDirectory() as folder:
        opened = open_session(content, threads=threads, profile=str(Path(folder) / "profile"))
        feeds = {
            each.name: usual_input(
                [size if isinstance(size, int) else batch for size in each.shape],
                INPUT_TYPES.get(each.type, np.float32),
            )
            for each in opened.get_inputs()
        }
        with quiet():
            for _ in range(RUNS):
                opened.run(None, feeds)
        events = json.loads(Path(opened.end_profiling()).read_bytes())
    durations: defaultdict[tuple[str, str, int, bool], list[float]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_KERNEL):
            about, name = event["args"], event["name"].removesuffix(_KERNEL)
            first: dict[str, list[int]] = next(iter(about["input_type_shape"]), {})
            values, in_integers = math.prod(next(iter(first.values()), [])), not first.keys().isdisjoint(_OF_8_BITS)
            durations[name, about["op_name"], values, in_integers].append(event["dur"] / 1e6)
    return [Kernel(*key[:2], float(np.median(each[1:])), *key[2:]) for key, each in durations.items()]


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
