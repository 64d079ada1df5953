"""Nodes that the operator table lacks, computed by onnxruntime: one small model for each, of the file's own node.

Such a node has no gradient. What the bodies of a Loop or an If read from the graph around them is passed in like any
other input.
"""

from collections.abc import Mapping, Sequence
from threading import Timer
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnx import ModelProto, NodeProto, ValueInfoProto, helper
from torch import Tensor

from senseapp.core.errors import InvalidSpec, UnsupportedModel, first_line_of, is_about_memory
from senseapp.networks.onnx.graph import Array
from senseapp.networks.onnx.torch_graph import Node

_IR_VERSION = 10  # of ONNX 1.16: knows integers of 4 bits, and every supported onnxruntime reads it
_FATAL = 4  # of the errors that it prints
_MOST_SECONDS = 60.0  # of the first call of a node
_WIDENED = frozenset({torch.float16, torch.bfloat16})  # files are read in float32


class InRuntime:
    """A function of tensors: the node's inputs, in its order, None for absent ones.

    On the meta device it returns outputs of the shapes that inputs of zeros give.
    """

    def __init__(self, node: Node) -> None:
        self.title = node.title
        self._source = node.source
        self._captured = node.captured
        self._version = node.version
        self._sessions: dict[tuple[Any, ...], Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave open sessions out: copies of the network open their own."""
        return {**self.__dict__, "_sessions": {}}

    def __call__(self, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        """Compute the node."""
        present = [each for each in tensors if each is not None]
        if any(each.is_meta for each in present):
            zeros = [None if each is None else torch.zeros_like(each, device="cpu") for each in tensors]
            real = [z if each is None or each.is_meta else each for each, z in zip(tensors, zeros, strict=True)]
            return tuple(each.to("meta") for each in self._run(real))
        if torch.is_grad_enabled() and any(each.requires_grad for each in present):
            outputs: tuple[Tensor, ...] = _WithoutGradient.apply(self, *tensors)
            return outputs
        return self._run(tensors)

    def _run(self, tensors: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        device = next((each.device for each in tensors if each is not None), torch.device("cpu"))
        feed = {_input(index): _plain(each) for index, each in enumerate(tensors) if each is not None}
        types = tuple((name, each.dtype) for name, each in feed.items())
        try:
            if types in self._sessions:
                found = self._sessions[types].run(None, feed)
            else:
                self._sessions = {types: open_session(self._model(types).SerializeToString())}
                found = run_in_time(self._sessions[types], None, feed, seconds=_MOST_SECONDS)
        except Exception as error:  # onnxruntime's own errors share no base
            if is_about_memory(error):
                raise
            raise UnsupportedModel(f"onnxruntime cannot compute node {self.title}: {first_line_of(error)}.") from error
        return tuple(torch.from_numpy(np.array(each)).to(device) for each in found)

    def _model(self, types: tuple[tuple[str, np.dtype[Any]], ...]) -> ModelProto:
        """Return a model of this node alone, whose inputs, of these types, and outputs are numbered."""
        node = NodeProto.FromString(self._source)
        count = len(node.input)
        outputs = [f"output {index}" if name else "" for index, name in enumerate(node.output)]
        node.input[:] = [_input(index) if name else "" for index, name in enumerate(node.input)]
        node.output[:] = outputs
        captured = (([_input(count + index)], [name]) for index, name in enumerate(self._captured))
        opsets = {"": self._version, node.domain: 1 if node.domain else self._version}
        graph = helper.make_graph(
            [*(helper.make_node("Identity", *each) for each in captured), node],
            "node",
            [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(kind), None) for name, kind in types],
            [ValueInfoProto(name=name) for name in outputs if name],
        )
        declared = [helper.make_opsetid(*each) for each in opsets.items()]
        return helper.make_model(graph, ir_version=_IR_VERSION, opset_imports=declared)


class _WithoutGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: InRuntime, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        ctx.title = function.title
        return function._run([None if each is None else each.detach() for each in tensors])

    @staticmethod
    def backward(ctx: Any, *_gradients: Tensor) -> Any:
        raise UnsupportedModel(f"Node {ctx.title} is computed by onnxruntime, which has no gradient of it.")


def open_session(
    content: bytes, *, threads: int | None = None, fused: bool = True, optimised: bool = True, profile: str = ""
) -> Any:
    """Open an ONNX file in onnxruntime on the processor; raises what onnxruntime does.

    It runs on ``threads`` where it is timed, else on as many as torch has. If not ``fused``, a QDQ file computes in
    float between roundings, and if not ``optimised``, node by node. A ``profile`` is written to a path that begins so.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    if threads is None:  # threads that wait actively would take time from other files that are being timed
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = _FATAL  # warnings would blur the one line of a command
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    if not fused:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    # Without the fallback a file that cannot be opened is not tried twice, and nothing is printed.
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"], enable_fallback=0)


def run_in_time(session: Any, names: Sequence[str] | None, feed: Mapping[str, Array], *, seconds: float) -> list[Any]:
    """Return outputs of a session; a graph may hold a loop that ends for no image, or not for one.

    Raises:
        InvalidSpec: the call takes longer than ``seconds``; and what onnxruntime raises.
    """
    options = onnxruntime.RunOptions()
    options.log_severity_level = _FATAL
    timer = Timer(seconds, setattr, (options, "terminate", True))
    timer.daemon = True
    timer.start()
    try:
        return list(session.run(names, feed, options))
    except Exception as error:
        if options.terminate:
            raise late(seconds) from error
        raise
    finally:
        timer.cancel()


def late(seconds: float) -> InvalidSpec:
    """Return the error for a call that took longer."""
    return InvalidSpec(f"The file takes more than {seconds:.0f} s for one call, so it was stopped.")


def _plain(tensor: Tensor) -> Array:
    plain = tensor.detach().cpu().contiguous()
    return (plain.float() if plain.dtype in _WIDENED else plain).numpy()


def _input(index: int) -> str:
    return f"input {index}"  # no name of a body has a space and a number so, and none is read by one
