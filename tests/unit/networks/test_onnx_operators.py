"""Each operator of the table on small tensors, compared with onnxruntime; edge cases as the specification has them."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from senseapp.networks.onnx.infer import evaluate
from senseapp.networks.onnx.operators import TABLE
from senseapp.networks.onnx.torch_graph import Node, UnreadNode


def _random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X = _random(2, 3, 5, 6)
UNIT = np.clip(X / 4, -0.99, 0.99)
POSITIVE = np.abs(X) + np.float32(0.1)
INTS = np.random.default_rng(1).integers(-7, 7, (2, 3, 4))
SMALL = np.random.default_rng(2).integers(1, 5, (2, 3, 4))
YES = X > 0
NO = _random(2, 3, 5, 6, seed=3) > 0


def _ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@dataclass(frozen=True)
class Case:
    op: str
    inputs: tuple[Any, ...] = (X,)
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 18
    outputs: int = 1

    def __str__(self) -> str:
        said = "-".join(f"{name}={value}" for name, value in self.attributes.items() if not hasattr(value, "dims"))
        return f"{self.op}-{self.opset}-{said}".replace(" ", "")[:70]


def case(op: str, *inputs: Any, opset: int = 18, outputs: int = 1, **attributes: Any) -> Case:
    return Case(op, inputs or (X,), attributes, opset, outputs)


_UNARY = (
    *("Abs", "Atan", "Asinh", "Ceil", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish"),
    *("Identity", "LeakyRelu", "Mish", "Neg", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh"),
    *("Softplus", "Softsign", "Tan", "Tanh", "ThresholdedRelu", "IsNaN", "IsInf"),
)
ELEMENTWISE = [
    *(case(op) for op in _UNARY),
    *(case(op, UNIT) for op in ("Acos", "Asin", "Atanh")),
    *(case(op, POSITIVE) for op in ("Log", "Sqrt", "Reciprocal")),
    case("Acosh", POSITIVE + 1),
    *(case(op, X, _random(5, 1, seed=4)) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean")),
    *(case(op, INTS, SMALL) for op in ("Add", "Div", "Mod", "Equal", "Less", "Greater", "Max")),
    *(case(op, X, X.round()) for op in ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")),
    *(case(op, YES, NO) for op in ("And", "Or", "Xor")),
    case("Not", YES),
    case("Where", YES, X, np.float32(2)),
    case("Pow", POSITIVE, np.float32(0.5)),
    case("Pow", X, np.array([2], np.float32)),
    case("Pow", INTS, np.array(2, np.float32)),
    case("Mod", X, POSITIVE, fmod=1),
    *(case(op, SMALL, SMALL[::-1], opset=18) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    case("BitwiseNot", SMALL),
    *(case("BitShift", SMALL.astype(np.uint8), SMALL.astype(np.uint8), direction=way) for way in ("LEFT", "RIGHT")),
    case("PRelu", X, _random(3, 1, 1)),
    case("Clip", X, np.float32(-0.5), np.float32(0.5)),
    case("Clip", X, None, np.float32(0.5)),
    case("Clip", X, np.float32(0)),
    case("Clip", X, opset=7, min=-0.3, max=0.4),
    case("Gelu", opset=20),
    case("Gelu", opset=20, approximate="tanh"),
    *(case("Swish", opset=24, alpha=alpha) for alpha in (1.0, 1.7)),
    case("HardSigmoid", alpha=1 / 6, beta=0.5),
    case("Celu", alpha=2.0),
    case("Elu", alpha=0.5),
    case("LeakyRelu", alpha=0.3),
    case("Selu", alpha=1.1, gamma=1.2),
    case("Shrink", bias=0.2, lambd=0.3),
    *(
        case("Cast", X * 3, to=to)
        for to in (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL, TensorProto.DOUBLE)
    ),
    case("CastLike", X, INTS),
    case("Dropout", X),
    case("Dropout", X, opset=7, ratio=0.3),
    *(case(op, X) for op in ("Softmax", "LogSoftmax", "Hardmax")),
    *(case(op, X, axis=1) for op in ("Softmax", "LogSoftmax", "Hardmax")),
    *(case(op, X, opset=11) for op in ("Softmax", "LogSoftmax", "Hardmax")),
    case("Softmax", X, opset=9, axis=2),
]
SHAPES = [
    case("Reshape", X, _ints(0, -1, 6)),
    case("Reshape", X, _ints(-1, 15)),
    case("Reshape", np.zeros((0, 3), np.float32), _ints(3, 0), allowzero=1),
    case("Flatten"),
    case("Flatten", axis=0),
    case("Flatten", axis=3),
    case("Flatten", axis=-1),
    case("Transpose"),
    case("Transpose", perm=[0, 2, 3, 1]),
    case("Squeeze", X[:, :1], _ints(1)),
    case("Squeeze", X[:1, :1]),
    case("Squeeze", X[:, :1], opset=11, axes=[1]),
    case("Unsqueeze", X, _ints(0, -1)),
    case("Unsqueeze", X, opset=11, axes=[1, 3]),
    case("Concat", X, X[:, :1], axis=1),
    case("Concat", X, X, axis=-1),
    case("Split", X, _ints(1, 2), axis=1, outputs=2),
    case("Split", X, axis=3, outputs=3, num_outputs=3),
    case("Split", X, axis=2, outputs=2, num_outputs=2),
    case("Split", X, opset=11, axis=3, split=[2, 4], outputs=2),
    case("Split", X, opset=11, axis=3, outputs=2),
    case("Expand", X[:, :1], _ints(2, 4, 1, 6)),
    case("Expand", X[0, 0], _ints(3, 1, 1)),
    case("Tile", X, _ints(1, 2, 1, 3)),
    case("Shape"),
    case("Shape", start=1, end=-1),
    case("Size"),
    case("ConstantOfShape", _ints(2, 3), value=numpy_helper.from_array(np.array([7], np.int64))),
    case("ConstantOfShape", _ints(2, 3)),
    case("Range", np.int64(2), np.int64(11), np.int64(3)),
    case("Range", np.float32(5), np.float32(1), np.float32(-0.5)),
    case("EyeLike", X[0, 0]),
    case("EyeLike", X[0, 0], k=1),
    case("DepthToSpace", _random(1, 8, 2, 3), blocksize=2),
    case("DepthToSpace", _random(1, 8, 2, 3), blocksize=2, mode="CRD"),
    case("SpaceToDepth", _random(1, 2, 4, 6), blocksize=2),
    case("Pad", X, _ints(0, 0, 1, 2, 0, 0, 3, 0)),
    case("Pad", X, _ints(0, 0, 1, -2, 0, 0, -1, 0), np.float32(3)),
    case("Pad", X, _ints(1, 2), np.float32(1), _ints(2)),
    case("Pad", X, _ints(0, 0, 1, 2, 0, 0, 3, 1), mode="reflect"),
    case("Pad", X, _ints(0, 1, 1, 2, 0, 0, 3, 1), mode="edge"),
    case("Pad", X, _ints(0, 0, 1, 2, 0, 0, 3, 1), opset=19, mode="wrap"),
    case("Pad", X, opset=9, pads=[0, 0, 1, 1, 0, 0, 0, 2], value=2.0),
]
SELECTION = [
    case("Slice", X, _ints(1, 0), _ints(2**62, -1), _ints(1, 3)),
    case("Slice", X, _ints(0, 4), _ints(5, 0), _ints(3, 2), _ints(2, -1)),
    case("Slice", X, _ints(-1), _ints(-(2**62)), _ints(2), _ints(-2)),
    case("Slice", X, _ints(1), _ints(2)),
    case("Slice", X, opset=9, starts=[1], ends=[-1], axes=[2]),
    case("Gather", X, np.int64(-1), axis=1),
    case("Gather", X, _ints(0, -1), axis=2),
    case("Gather", X, np.array([[0, 1], [2, 0]]), axis=1),
    case("GatherElements", X[0, 0], np.array([[0, -1], [1, 2]]), axis=1),
    case("GatherND", X, np.array([[0, 1], [1, -1]])),
    case("GatherND", X, np.array([[0], [2]]), batch_dims=1),
    case("ScatterElements", X[0, 0], np.array([[0, -1], [1, 2]]), _random(2, 2), axis=1),
    case("ScatterElements", X[0, 0], np.array([[0, 0], [1, 2]]), _random(2, 2), axis=1, reduction="add"),
    case("ScatterND", X, np.array([[0, 1], [1, 0]]), _random(2, 5, 6)),
    case("ScatterND", X, np.array([[0, 1], [0, 1]]), _random(2, 5, 6), reduction="add"),
    case("OneHot", SMALL, np.int64(6), np.array([0, 2], np.float32)),
    case("OneHot", INTS[0], _ints(8), np.array([-1, 1], np.float32), axis=0),
    case("CumSum", X, np.int64(1)),
    case("CumSum", X, np.int64(-1), exclusive=1, reverse=1),
    case("Trilu", X),
    case("Trilu", X, np.int64(1), upper=0),
    case("TopK", X, _ints(2), axis=2, outputs=2),
    case("TopK", X, _ints(3), largest=0, outputs=2),
]
_REDUCE = ("L1", "L2", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
REDUCTIONS = [
    *(case(f"Reduce{kind}", X, _ints(1, -1)) for kind in _REDUCE),
    *(case(f"Reduce{kind}", X, opset=11, axes=[2, 3], keepdims=0) for kind in _REDUCE),
    case("ReduceLogSum", POSITIVE, _ints(2)),
    case("ReduceMean", X),
    case("ReduceSum", X, opset=13, noop_with_empty_axes=1),
    case("ReduceSum", INTS, _ints(0)),
    case("ArgMax", X, axis=1),
    case("ArgMax", X.round(), axis=-1, keepdims=0, select_last_index=1),
    case("ArgMin", X, axis=2),
]
W = _random(4, 3, 3, 3, seed=5)
T = _random(3, 4, 3, 3, seed=6)
B = _random(4, seed=7)
LARGE = _random(2, 3, 9, 10, seed=8)
WINDOWS = [
    case("Conv", LARGE, W, B),
    case("Conv", LARGE, W, pads=[1, 2, 1, 2], strides=[2, 1]),
    case("Conv", LARGE, W, B, pads=[0, 0, 1, 2], strides=[2, 2]),
    *(case("Conv", LARGE, W, auto_pad=way, strides=[2, 3]) for way in ("SAME_UPPER", "SAME_LOWER", "VALID")),
    case("Conv", LARGE, W, dilations=[2, 2]),
    case("Conv", LARGE, _random(6, 1, 3, 3), group=3),
    case("Conv", LARGE[:, :, 0], _random(4, 3, 3), B, pads=[1, 1]),
    case("Conv", _random(1, 2, 4, 5, 6), _random(3, 2, 2, 2, 2)),
    case("ConvTranspose", LARGE, T, B),
    case("ConvTranspose", LARGE, T, strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]),
    case("ConvTranspose", LARGE, T, strides=[2, 2], pads=[0, 1, 1, 0]),
    case("ConvTranspose", LARGE, T, strides=[2, 2], auto_pad="SAME_UPPER"),
    case("ConvTranspose", LARGE, T, strides=[2, 2], output_shape=[18, 20]),
    case("ConvTranspose", LARGE, _random(3, 2, 3, 3), group=3, dilations=[2, 1]),
    case("ConvTranspose", LARGE[:, :, 0], _random(3, 4, 3), strides=[2]),
    case("MaxPool", LARGE, kernel_shape=[3, 2]),
    case("MaxPool", LARGE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1),
    case("MaxPool", LARGE, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1]),
    case("MaxPool", LARGE, kernel_shape=[2, 2], strides=[3, 3], pads=[0, 0, 1, 1], ceil_mode=1),
    case("MaxPool", LARGE, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
    case("MaxPool", LARGE, kernel_shape=[2, 2], dilations=[2, 3]),
    case("MaxPool", LARGE, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 0], outputs=2),
    case("MaxPool", LARGE[:, :, 0], kernel_shape=[2], strides=[2], ceil_mode=1, outputs=2),
    case("MaxUnpool", X[:, :, :2, :2], np.arange(24).reshape(2, 3, 2, 2) * 4 + 1, kernel_shape=[2, 2], strides=[2, 2]),
    case("MaxPool", LARGE[:, :, 0], kernel_shape=[3], strides=[2]),
    case("AveragePool", LARGE, kernel_shape=[3, 2], strides=[2, 2]),
    case("AveragePool", LARGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    case("AveragePool", LARGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    case("AveragePool", LARGE, kernel_shape=[3, 3], pads=[0, 0, 1, 2], strides=[2, 2]),
    case("AveragePool", LARGE, kernel_shape=[3, 3], pads=[0, 0, 1, 2], count_include_pad=1),
    case("AveragePool", LARGE, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1, opset=19),
    case("AveragePool", LARGE, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_LOWER"),
    case("AveragePool", LARGE, kernel_shape=[2, 2], dilations=[2, 1], opset=19),
    *(case(op, LARGE) for op in ("GlobalAveragePool", "GlobalMaxPool")),
    case("GridSample", LARGE, UNIT[:, :2, :4, :2].copy(), opset=16),
    case("GridSample", LARGE, X[:, :2, :4, :2].copy(), opset=16, padding_mode="border", align_corners=1),
    case("GridSample", LARGE, X[:, :2, :4, :2].copy(), opset=16, mode="nearest", padding_mode="reflection"),
    case("AffineGrid", _random(2, 2, 3), _ints(2, 3, 4, 5), opset=20),
    case("RoiAlign", LARGE, np.array([[0, 0, 5, 5], [1, 2, 8, 7]], np.float32), _ints(0, 1), opset=16,
         output_height=3, output_width=2, sampling_ratio=2),
    case("RoiAlign", LARGE, np.array([[0, 0, 5, 5]], np.float32), _ints(1), opset=13, output_height=2, output_width=2),
]  # fmt: skip


def _resize(scales: Any = None, sizes: Any = None, x: np.ndarray = LARGE, opset: int = 18, **attributes: Any) -> Case:
    scales = None if scales is None else np.array(scales, np.float32)
    roi = np.zeros(0, np.float32) if opset < 13 else None
    sizes = None if sizes is None else np.array(sizes, np.int64)
    return case("Resize", x, roi, scales, *(() if sizes is None else (sizes,)), opset=opset, **attributes)


_COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
_MODES = ("nearest", "linear", "cubic")
RESIZE = [
    *(_resize([1, 1, 2, 2], mode=mode, coordinate_transformation_mode=way) for mode in _MODES for way in _COORDINATES),
    *(_resize([1, 1, 0.6, 1.7], mode=mode, coordinate_transformation_mode=way) for mode in _MODES
      for way in _COORDINATES),
    *(_resize(sizes=[2, 3, 5, 17], mode=mode) for mode in _MODES),
    *(_resize([1, 1, 3, 2], mode="nearest", coordinate_transformation_mode=way, nearest_mode=rounding)
      for way in ("asymmetric", "half_pixel")
      for rounding in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")),
    _resize([1, 1, 2, 2], mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1),
    _resize([2, 0.5], mode="linear", axes=[2, 3]),
    *(_resize([1, 1, 0.37, 1.7], mode=mode, antialias=1, exclude_outside=excluded, coordinate_transformation_mode=way)
      for mode in ("linear", "cubic") for excluded in (0, 1) for way in ("half_pixel", "align_corners")),
    _resize([1, 2, 2, 1], x=LARGE, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    _resize([1, 1, 2, 2], opset=11, mode="nearest", coordinate_transformation_mode="tf_half_pixel_for_nn"),
    case("Resize", LARGE, np.array([1, 1, 2, 3], np.float32), opset=10),
    case("Resize", LARGE, np.array([1, 1, 2, 3], np.float32), opset=10, mode="linear"),
    case("Upsample", LARGE, np.array([1, 1, 2, 2], np.float32), opset=9),
    case("Upsample", LARGE, opset=7, scales=[1.0, 1.0, 2.0, 3.0], mode="linear"),
]  # fmt: skip
C = _random(3, seed=9)
NORMS = [
    case("BatchNormalization", X, C, C + 1, C - 1, np.abs(C) + 0.1),
    case("BatchNormalization", X, C, C + 1, C - 1, np.abs(C) + 0.1, opset=9, epsilon=0.1),
    case("BatchNormalization", X, C, C + 1, C - 1, np.abs(C) + 0.1, outputs=3, training_mode=1),
    case("InstanceNormalization", X, C, C + 1, epsilon=0.01),
    case("LayerNormalization", X, _random(6), _random(6)),
    case("LayerNormalization", X, _random(5, 6), axis=2, epsilon=0.1),
    case("GroupNormalization", _random(2, 4, 3, 3), B[:2], B[2:], opset=18, num_groups=2),
    case("GroupNormalization", _random(2, 4, 3, 3), B, B + 1, opset=21, num_groups=2),
    case("RMSNormalization", X, _random(6), opset=23),
    case("LpNormalization", X, axis=1, p=2),
    case("LpNormalization", X, axis=1, p=1),
    case("LRN", LARGE, size=3, alpha=0.5, beta=0.6, bias=1.5),
]
M = _random(4, 6, seed=10)
PRODUCTS = [
    case("MatMul", X, _random(2, 3, 6, 4)),
    case("MatMul", X, _random(6, 4)),
    case("Gemm", M, _random(6, 3), _random(3)),
    case("Gemm", M, _random(3, 6), _random(4, 1), transB=1, alpha=0.5, beta=2.0),
    case("Gemm", M, _random(4, 3), transA=1),
    case("Einsum", X, _random(2, 3, 6, 4), equation="bchw,bcwd->bchd"),
    case("Einsum", M, M, equation="ij, ij -> i"),
    case("Det", _random(2, 3, 3)),
    case("Attention", _random(2, 4, 5, 6), _random(2, 2, 7, 6), _random(2, 2, 7, 3), opset=23),
]
SCALE = np.float32(0.05)
QUANTIZED = [
    case("QuantizeLinear", X, SCALE, np.uint8(120)),
    case("QuantizeLinear", X, SCALE, np.int8(-3)),
    case("QuantizeLinear", X, np.abs(C) / 10 + SCALE, np.array([1, 2, 3], np.int8), axis=1),
    case("DequantizeLinear", (X * 20).round().astype(np.int8), SCALE, np.int8(4)),
    case("DequantizeLinear", (X * 20).round().astype(np.int8), np.abs(C) + 1, np.array([1, 2, 3], np.int8), axis=1),
    case("DequantizeLinear", (X * 20).round().astype(np.int32), SCALE),
]
S = _random(7, 2, 3, seed=11)


def _cell(op: str, gates: int, ways: int, *more: Any, **attributes: Any) -> Case:
    return case(
        *(op, S, _random(ways, gates * 4, 3), _random(ways, gates * 4, 4, seed=1)),
        *(_random(ways, gates * 8, seed=2), *more),
        outputs=3 if op == "LSTM" else 2,
        hidden_size=4,
        **attributes,
    )


RECURRENT = [
    _cell("LSTM", 4, 1),
    _cell("LSTM", 4, 1, direction="reverse"),
    _cell("LSTM", 4, 2, direction="bidirectional"),
    _cell("LSTM", 4, 1, None, _random(1, 2, 4, seed=3), _random(1, 2, 4, seed=4)),
    _cell("GRU", 3, 2, direction="bidirectional", linear_before_reset=1),
    _cell("GRU", 3, 1, direction="reverse", linear_before_reset=1),
    _cell("RNN", 1, 1),
]
CASES = [
    *(*ELEMENTWISE, *SHAPES, *SELECTION, *REDUCTIONS, *WINDOWS, *RESIZE),
    *(*NORMS, *PRODUCTS, *QUANTIZED, *RECURRENT),
]


def _names(count: int, prefix: str, inputs: tuple[Any, ...] | None = None) -> list[str]:
    return ["" if inputs is not None and inputs[index] is None else f"{prefix}{index}" for index in range(count)]


def _by_onnxruntime(case: Case) -> list[np.ndarray]:
    inputs = {f"x{index}": np.asarray(value) for index, value in enumerate(case.inputs) if value is not None}
    node = helper.make_node(
        case.op, _names(len(case.inputs), "x", case.inputs), _names(case.outputs, "y"), **case.attributes
    )
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in inputs.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in node.output],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def _node(case: Case) -> Node:
    attributes = {
        name: torch.from_numpy(numpy_helper.to_array(value).copy()) if hasattr(value, "dims") else value
        for name, value in case.attributes.items()
    }
    return Node(
        name=case.op.lower(),
        op=case.op,
        version=case.opset,
        inputs=tuple(_names(len(case.inputs), "x", case.inputs)),
        outputs=tuple(_names(case.outputs, "y")),
        attributes=attributes,
    )


def _by_table(case: Case) -> tuple[Any, ...]:
    values = [None if each is None else torch.from_numpy(np.array(each)) for each in case.inputs]
    return evaluate(_node(case), values)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_operator_computes_what_onnxruntime_computes(case: Case) -> None:
    for mine, theirs in zip(_by_table(case), _by_onnxruntime(case), strict=False):
        assert tuple(mine.shape) == theirs.shape
        if case.op != "QuantizeLinear":  # whose codes are kept as float
            assert str(mine.dtype).removeprefix("torch.") == str(theirs.dtype)
        scale = max(1e-3, float(np.abs(theirs.astype(np.float64)).max(initial=0)))
        np.testing.assert_allclose(mine.double().numpy(), theirs.astype(np.float64), atol=2e-6 * scale, rtol=1e-5)


def test_a_form_that_torch_does_not_compute_is_refused_by_its_node() -> None:
    with pytest.raises(UnreadNode, match=r"Node “gru” \(GRU\) is not supported: it applies its reset gate before"):
        _by_table(_cell("GRU", 3, 1))


def test_every_operator_of_the_table_has_a_case() -> None:
    assert {name for name, _ in TABLE} - {case.op for case in CASES} <= {
        "ExpandLike",
        "ImageNormalization",
        "Roll",
        "Scatter",
    }
