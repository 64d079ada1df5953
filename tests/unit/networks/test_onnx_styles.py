"""Files in the styles of other converters open as networks with onnxruntime's numbers, or are refused by node."""

import gc
import time
from collections.abc import Callable, Iterator

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto

from senseapp.core.errors import UnsupportedModel
from senseapp.networks.onnx.open import OpenedOnnx, open_onnx
from tests.onnx_styles import STYLES
from tests.onnx_styles.graphs import long_chain

_REFUSED = {
    "quantized: products in integers": "Node “quant/QLinearConv_1” (QLinearConv) is not supported",
    "quantized: ranges of each image": "Node “dyn/DynamicQuantizeLinear_2” (DynamicQuantizeLinear) is not supported",
}
_INVALID = {"quantized: by channel before its opset"}  # for onnxruntime, until its opset is raised
_AT_ITS_OWN_BATCH = {"paddle2onnx: detector of two inputs"}
_TYPES = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16, TensorProto.UINT8: np.uint8}


def _known(content: bytes, opened: OpenedOnnx, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return what onnxruntime computes from the file itself, with all its optimisations."""
    model = onnx.load_from_string(content)
    there = {each.name for each in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=each) for each in opened.outputs if each not in there)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(list(opened.outputs), inputs)


def _inputs(content: bytes, opened: OpenedOnnx) -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    graph, found = onnx.load_from_string(content).graph, {}
    weights = {each.name for each in graph.initializer}
    for each in graph.input:
        if each.name not in weights:
            declared = each.type.tensor_type
            lengths = [max(dim.dim_value, 0) or (opened.batch or 1) for dim in declared.shape.dim]
            values = random.random(lengths) * (255 if declared.elem_type == TensorProto.UINT8 else 1)
            found[each.name] = values.astype(_TYPES[declared.elem_type])
    return found


def _tolerance(name: str) -> float:
    return 1e-5 if not name.startswith(("quantized", "float16")) else 2e-2 if name.startswith("quantized") else 5e-3


@pytest.mark.parametrize("name", STYLES)
def test_a_style_opens_with_the_numbers_of_onnxruntime_or_is_refused_by_node(name: str) -> None:
    content = STYLES[name]()
    if name in _REFUSED:
        with pytest.raises(UnsupportedModel) as refusal:
            open_onnx(content)
        assert str(refusal.value).startswith(_REFUSED[name])
        return
    opened = open_onnx(content)
    assert opened.difference < 1e-5 or name.startswith("quantized")
    assert (opened.batch is not None) == (name in _AT_ITS_OWN_BATCH)
    if name in _INVALID:
        return
    inputs = _inputs(content, opened)
    given = [torch.from_numpy(inputs[each]) for each in opened.network.input_names]
    with torch.no_grad():
        mine = opened.network(*[each.float() if each.dtype == torch.float16 else each for each in given])
    for ours, known in zip(mine if isinstance(mine, tuple) else (mine,), _known(content, opened, inputs), strict=True):
        assert ours.shape == known.shape
        assert np.abs(ours.numpy() - known).max() <= _tolerance(name) * np.abs(known).max()


@pytest.mark.parametrize("name", ["branch on a shape", "branch in a branch", "branch on a constant"])
def test_branches_that_shapes_decide_are_part_of_the_network(name: str) -> None:
    opened = open_onnx(STYLES[name]())
    assert opened.outputs == tuple(each.name for each in onnx.load_from_string(STYLES[name]()).graph.output)
    assert any("(If)" in note for note in opened.notes)
    assert not any("behind" in note for note in opened.notes)


def test_outputs_of_the_file_are_not_cut_again_behind_box_selection() -> None:
    assert open_onnx(STYLES["tf2onnx: detector with bytes"]()).outputs == ("raw_boxes", "raw_scores")


@pytest.fixture
def no_collection() -> Iterator[None]:
    """The garbage collector looks at whatever other tests left, which takes as long as opening a file."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.wide
@pytest.mark.usefixtures("no_collection")
def test_the_time_of_a_long_graph_grows_with_its_nodes() -> None:
    def seconds(make: Callable[[], bytes]) -> float:
        content, before = make(), time.process_time()
        assert open_onnx(content).difference < 1e-5
        return time.process_time() - before

    seconds(lambda: long_chain(100))
    few, many = seconds(lambda: long_chain(250)), seconds(lambda: long_chain(2_000))
    assert many < 16 * few  # twice what is linear
