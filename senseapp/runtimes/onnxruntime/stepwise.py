"""An ONNX network that is computed from one tensor to the next, as what comes next depends on what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray
from onnx import NodeProto, helper
from onnxruntime import InferenceSession, SessionOptions

from senseapp.networks.onnx.graph import OnnxGraph, read_by

Array: TypeAlias = NDArray[Any]


class StepwiseNetwork:
    """Computes tensors of a network with one input, each once; they may be changed before others are made of them.

    QDQ pairs are computed in float as they stand. Each of ``inputs`` is what the network takes for a few images.
    Tensors are held while nodes are left that read them.
    """

    def __init__(self, network: OnnxGraph, inputs: Sequence[Array]) -> None:
        (taken,) = network.inputs
        self._graph, self._left = network, list(network.nodes)
        self._readers = Counter(name for node in network.nodes for name in read_by(node))
        self._held: list[dict[str, Array]] = [{taken: each} for each in inputs]

    def values(self, tensor: str) -> list[Array]:
        """Return ``tensor`` for each of the inputs; raises KeyError for one that is no longer held."""
        if tensor not in self._held[0]:
            self._compute(tensor)
        return [held[tensor] for held in self._held]

    def add(self, tensor: str, values: Array) -> None:
        """Add ``values``, which broadcast, to what tensors that are computed from now on are made of."""
        for held in self._held:
            held[tensor] = held[tensor] + values

    def _compute(self, tensor: str) -> None:
        nodes, self._left = self._split(tensor)
        for node in nodes:
            self._readers.subtract(read_by(node))
        made = [name for node in nodes for name in node.output if name == tensor or self._readers[name] > 0]
        read = sorted(set().union(*map(read_by, nodes)))
        taken = [name for name in read if name in self._held[0]]
        session = self._session(nodes, taken, made)
        for held in self._held:
            found = session.run(made, {name: held[name] for name in taken})
            held.update(zip(made, found, strict=True))
            for name in [each for each in held if each != tensor and self._readers[each] <= 0]:
                del held[name]

    def _split(self, tensor: str) -> tuple[list[NodeProto], list[NodeProto]]:
        """Return the nodes that ``tensor`` is still to be computed by, and the others; in order."""
        wanted, nodes, others = {tensor}, list[NodeProto](), list[NodeProto]()
        for node in reversed(self._left):
            needed = not wanted.isdisjoint(node.output)
            (nodes if needed else others).append(node)
            wanted.update(read_by(node) if needed else ())
        return nodes[::-1], others[::-1]

    def _session(self, nodes: list[NodeProto], taken: Sequence[str], made: Sequence[str]) -> InferenceSession:
        step = self._graph.part(())
        step.nodes, step.initializers = nodes, dict(self._graph.initializers)
        kinds = {name: helper.np_dtype_to_tensor_dtype(self._held[0][name].dtype) for name in taken}
        step.model.graph.input.extend(helper.make_tensor_value_info(name, kinds[name], None) for name in taken)
        step.return_values(made)
        step.prune()
        options = SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3  # errors
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return InferenceSession(step.content(), options, providers=["CPUExecutionProvider"])
