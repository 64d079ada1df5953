"""ONNX files on the simulator of Qualcomm's HTP: onnxruntime's provider QNN, with its backend for this machine.

Operators that the HTP does not compute run in onnxruntime on the processor, as they would beside the device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import onnxruntime_qnn
from torch import Tensor

from senseapp.core.errors import InvalidSpec, OutOfMemory, first_line_of, is_about_memory
from senseapp.core.texts import plural, printable_text
from senseapp.networks.onnx.read import parsed_model
from senseapp.runtimes.onnxruntime.runtime import ForeignFile
from senseapp.runtimes.open_file import Array, OpenFile

_ROUNDING = ("QuantizeLinear", "DequantizeLinear")
_LOG_ERRORS = 3


@cache
def _devices() -> list[Any]:
    """Register the provider once in this process, and return its devices."""
    name = onnxruntime_qnn.get_ep_name()
    onnxruntime.register_execution_provider_library(name, onnxruntime_qnn.get_library_path())
    return [each for each in onnxruntime.get_ep_devices() if each.ep_name == name]


class SimulatedFile(OpenFile):
    """An ONNX file, compiled for the HTP and open on its simulator for one image a call.

    Attributes:
        about: in a sentence, how many of its operators the HTP computes.

    Raises InvalidSpec if it cannot be compiled, or the HTP computes no part of it.
    """

    title = "ONNX"

    def __init__(self, content: bytes, *, context: Path | None = None) -> None:
        opened = ForeignFile(content)
        batch = opened.facts.input_shape[0] or 1
        self.facts = replace(opened.facts, input_shape=(batch, *opened.facts.input_shape[1:]))
        self._chosen, self.nesting = opened._chosen, opened.nesting
        try:
            self._session = onnxruntime.InferenceSession(content, self._options(content, batch, context))
        except Exception as error:  # onnxruntime raises one class for each of its states, all undocumented
            raise _refusal("compile", error) from error
        by_provider: Counter[str] = Counter()
        left: Counter[str] = Counter()
        for part in self._session.get_provider_graph_assignment_info():
            kinds = [each.op_type for each in part.get_nodes() if each.op_type not in _ROUNDING]
            is_there = part.ep_name == onnxruntime_qnn.get_ep_name()
            by_provider[part.ep_name if is_there else ""] += len(kinds)
            left.update([] if is_there else kinds)
        on_it = by_provider[onnxruntime_qnn.get_ep_name()]
        if not on_it:
            raise InvalidSpec("Qualcomm's HTP computes no operator of this file. Use a file in int8 (QDQ).")
        others = f"; on the processor: {', '.join(sorted(left))}" if left else ""
        self.about = f"{on_it} of {plural(by_provider.total(), 'operator')} run on the HTP{others}."

    def _options(self, content: bytes, batch: int, context: Path | None) -> Any:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _LOG_ERRORS
        settings = {"session.record_ep_graph_assignment_info": "1"}
        if context is not None:
            context.unlink(missing_ok=True)  # it is not written over
            settings |= {"ep.context_enable": "1", "ep.context_embed_mode": "1", "ep.context_file_path": str(context)}
        for name, value in settings.items():
            options.add_session_config_entry(name, value)
        first = parsed_model(content).graph.input[0].type.tensor_type.shape.dim[0]
        if first.dim_param:
            options.add_free_dimension_override_by_name(first.dim_param, batch)
        options.add_provider_for_devices(_devices(), {"backend_path": onnxruntime_qnn.get_qnn_htp_path()})
        return options

    def arrays(self, names: Sequence[str], fed: Tensor) -> dict[str, Array]:
        """Return outputs of these names, as the simulator computes them."""
        try:
            found = self._session.run(list(names), {self.facts.input_name: np.ascontiguousarray(fed.numpy())})
        except Exception as error:
            raise _refusal("run", error) from error
        return dict(zip(names, found, strict=True))


def _refusal(what: str, error: Exception) -> Exception:
    if is_about_memory(error):
        return OutOfMemory("The simulator needs more memory than there is.")
    return InvalidSpec(
        printable_text(f"The simulator of Qualcomm's HTP cannot {what} this file: {first_line_of(error, 300)}.")
    )


def simulated(content: bytes, *, context: Path | None = None) -> SimulatedFile:
    """Return an ONNX file on the simulator; the compiled file is put at ``context``, for onnxruntime on the device."""
    return SimulatedFile(content, context=context)
