"""Small ONNX files made by hand, for the tests of their reader."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import NodeProto, TensorProto, helper, numpy_helper

Shape = Sequence[int | str | None]


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    """Return reproducible float32 numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def node(op: str, inputs: str, outputs: str, name: str | None = None, **attributes: Any) -> NodeProto:
    """Return a node; names of values are separated by blanks, ``-`` is an absent one."""
    read = ["" if each == "-" else each for each in inputs.split()]
    return helper.make_node(op, read, outputs.split(), name=outputs.split()[0] if name is None else name, **attributes)


def model_of(
    nodes: Sequence[NodeProto],
    initializers: Mapping[str, np.ndarray],
    *,
    shape: Shape = (1, 3, 8, 8),
    outputs: Sequence[str] = ("y",),
    opset: int = 18,
    element_type: int = TensorProto.FLOAT,
    **more: Any,
) -> onnx.ModelProto:
    """Return a model with the input ``x`` of ``shape``."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", element_type, shape)],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in initializers.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9, **more)


def by_onnxruntime(content: bytes, images: torch.Tensor) -> list[np.ndarray]:
    """Return all outputs that onnxruntime computes from a file of one input, in the input's precision."""
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    [given] = session.get_inputs()
    kind = {"tensor(float16)": np.float16}.get(given.type, np.float32)
    return session.run(None, {given.name: images.numpy().astype(kind)})


def file_of(*args: Any, **kwargs: Any) -> bytes:
    """Return :func:`model_of` as bytes."""
    return model_of(*args, **kwargs).SerializeToString()
