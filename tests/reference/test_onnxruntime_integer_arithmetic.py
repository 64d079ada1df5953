"""What an int8 file computes, simulated, against onnxruntime's own integer kernels: all pairs of two 8-bit tensors."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from senseapp.runtimes.onnxruntime.integer_arithmetic import UNDONE_BY, computed_on_integers

_TIED = ((0.089561924, 140), (0.075649284, 131), (0.10851641, 153))  # 116 and 163 make 155.5 to the last bit


def _random_scales(seed):
    generator = np.random.default_rng(seed)
    return tuple((float(generator.uniform(0.01, 0.1)), int(generator.integers(0, 256))) for _ in range(3))


def _network(kind, scales):
    """Return ``kind`` of two inputs in int8, whose output is the integers themselves."""
    constants, nodes = [], []
    for name, (scale, zero) in zip(("a", "b", "c"), scales, strict=True):
        constants.append(numpy_helper.from_array(np.float32(scale), f"{name}.scale"))
        constants.append(numpy_helper.from_array(np.uint8(zero), f"{name}.zero"))
        source = "sum" if name == "c" else name
        nodes.append(
            helper.make_node(
                "QuantizeLinear", [source, f"{name}.scale", f"{name}.zero"], [f"{name}.q"], name=f"{name}.round"
            )
        )
        back = "c.float" if name == "c" else f"{name}.float"
        nodes.append(
            helper.make_node(
                "DequantizeLinear", [f"{name}.q", f"{name}.scale", f"{name}.zero"], [back], name=f"{name}.back"
            )
        )
    nodes.insert(4, helper.make_node(kind, ["a.float", "b.float"], ["sum"], name="together"))
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]) for name in "ab"]
    outputs = [helper.make_tensor_value_info("c.float", TensorProto.FLOAT, [None])]
    graph = helper.make_graph(nodes, "network", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def _run(content, feeds, *, simulated):
    options = onnxruntime.SessionOptions()
    if simulated:
        content = computed_on_integers(content)
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = onnxruntime.InferenceSession(
        content, options, providers=["CPUExecutionProvider"], disabled_optimizers=UNDONE_BY if simulated else ()
    )
    return session.run(None, feeds)[0]


@pytest.mark.parametrize("kind", ["Add", "Mul"])
@pytest.mark.parametrize("scales", [_TIED, *map(_random_scales, range(8))])
def test_every_pair_of_integers_comes_to_what_the_kernel_makes_of_it(kind, scales):
    first, second = (grid.ravel().astype(np.float32) for grid in np.meshgrid(np.arange(256), np.arange(256)))
    (one, first_zero), (other, second_zero), (last, zero) = scales
    feeds = {"a": (first - first_zero) * np.float32(one), "b": (second - second_zero) * np.float32(other)}
    content = _network(kind, scales)
    found, real = (_run(content, feeds, simulated=simulated) for simulated in (True, False))
    exact = feeds["a"] + feeds["b"] if kind == "Add" else feeds["a"] * feeds["b"]
    inside = (exact / last + zero > 0) & (exact / last + zero < 255)
    assert np.abs(real - exact)[inside].max() <= last / 2 * (1 + 1e-4)  # it is rounded, not left in float
    assert len(np.unique(real)) <= 256
    assert np.array_equal(found, real)
