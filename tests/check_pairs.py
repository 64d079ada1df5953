"""Verdicts of ``senseapp check`` on pairs of files made by other programs, some of them broken on purpose.

Each candidate is made from the network that reads digits, or from the demo detector, with onnxruntime's quantizers,
torch's exporters, and edits of the graph as converters make them. A verdict is right if it is the expected one, its
reason names the damage, and its loss (of classifiers) is that of a script that runs both files in onnxruntime.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import ModelProto, TensorProto, helper, numpy_helper, version_converter
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from senseapp.core.errors import InvalidInput
from senseapp.data.demo_pictures import load_shapes
from senseapp.data.load import load_demo_images
from senseapp.networks.loaded import LoadedModel
from senseapp.networks.sources.demo import DEMO_PREPROCESSING, build_demo_network, load_demo_model
from senseapp.networks.sources.load import load_model
from senseapp.prove.check.check import check_files
from senseapp.records.check import CheckReport, CheckSpec
from senseapp.records.spec import DataSpec, ModelSpec
from senseapp.runtimes.onnxruntime.operations import OPERATIONS as ONNXRUNTIME
from senseapp.views.words.check import divergence_sentence

HOLDS, FAILS, REFUSED = "holds", "fails", "refused"
LOST_POINTS = 0.03  # allowed loss of top-1
_MEAN, _STD = DEMO_PREPROCESSING.mean[0], DEMO_PREPROCESSING.std[0]
Edit = Callable[["Workshop"], ModelProto | Path]


@dataclass(frozen=True, slots=True)
class Pair:
    """A candidate, what is wrong with it if anything, and the verdict that is right.

    Attributes:
        make: returns the candidate.
        expected: verdict.
        reason: words that the reason of a failure or refusal must hold.
        parts_at: words that the sentence on where tensors part must hold.
        max_time: limit on the time ratio, if any.
        detects: whether the reference is the detector.
    """

    name: str
    make: Edit
    reason: str = ""
    expected: str = HOLDS
    parts_at: str = ""
    max_time: float | None = None
    detects: bool = False


class Workshop:
    """The reference, and what candidates are made of it."""

    task, data = "classification", DataSpec(kind="demo", mean=(_MEAN,), std=(_STD,))
    lost: float = LOST_POINTS
    most_images: int | None = None
    batch = 16

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        torch.set_num_threads(1)

    @cached_property
    def images(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Normalised digits that no part of the network was trained on, (N, 1, 32, 32)."""
        digits = load_demo_images("heldout")
        return digits.batch(0, len(digits)).numpy()

    @cached_property
    def labels(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Of the images."""
        found = load_demo_images("heldout").labels
        assert isinstance(found, torch.Tensor)
        return found.numpy()

    @cached_property
    def reference(self) -> Path:
        """The network in float as torch's exporter writes it, any number of images."""
        return self.exported(load_demo_model().module, "reference.onnx")

    def exported(
        self, network: torch.nn.Module, name: str, *, batch: int | None = None, shape: Sequence[int] = (1, 32, 32),
        training: Any = torch.onnx.TrainingMode.EVAL, inputs: str = "images", outputs: str = "scores",
    ) -> Path:  # fmt: skip
        """Export a network by torch's older exporter, which folds norms unless ``training`` preserves them."""
        path = self.folder / name
        torch.onnx.export(
            network.eval(),
            (torch.zeros(batch or 2, *shape),),
            str(path),
            dynamo=False,
            input_names=[inputs],
            output_names=[outputs],
            dynamic_axes=None if batch else {inputs: {0: "N"}, outputs: {0: "N"}},
            opset_version=17,
            training=training,
        )
        return path

    @property
    def model(self) -> ModelProto:
        """A copy of the reference to edit."""
        return onnx.load(self.reference)

    def quantized(self, *, images: np.ndarray[Any, Any] | None = None, **options: Any) -> Path:
        """Return the reference by onnxruntime's static quantizer."""
        path = self.folder / "static.onnx"
        reader = _Reader(self.images[:64] if images is None else images, self.batch)
        quantize_static(str(self.reference), str(path), reader, **options)
        return path

    def dynamic(self, **options: Any) -> Path:
        """Return the reference by onnxruntime's dynamic quantizer."""
        path = self.folder / "dynamic.onnx"
        quantize_dynamic(str(self.reference), str(path), **options)
        return path

    def scores(self, path: Path) -> np.ndarray[Any, Any]:
        """Return the first output for all images, in plain onnxruntime; for inputs (N, 1, 32, 32) in float32 alone."""
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        (given,) = session.get_inputs()
        size = given.shape[0] if isinstance(given.shape[0], int) else len(self.images)
        parts = []
        for low in range(0, len(self.images), size):
            part = self.images[low : low + size]
            filled = np.concatenate([part, np.repeat(part[:1], size - len(part), axis=0)])
            parts.append(session.run(None, {given.name: filled})[0][: len(part)])
        return np.concatenate(parts)


class DetectorWorkshop(Workshop):
    """The demo detector, with open heads, on pictures of shapes that it was not trained on."""

    task, data = "detection", DataSpec(kind="shapes", mean=(0.5,) * 3, std=(0.25,) * 3)
    lost, most_images, batch = 0.1, 96, 1

    @cached_property
    def loaded(self) -> LoadedModel:
        """The trained detector."""
        return load_model(ModelSpec(library="demo", name="shapes_detector", task="detection"))

    @cached_property
    def images(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Pictures as the detector takes them, (N, 3, 64, 64)."""
        pictures = load_shapes(self.loaded.preprocessing, 64, with_boxes=False)
        return pictures.batch(0, len(pictures)).numpy()

    @cached_property
    def reference(self) -> Path:
        """The detector in float as senseapp exports it: its boxes are decoded inside."""
        return self.written(self.loaded.module)

    def written(self, module: torch.nn.Module, name: str = "reference.onnx") -> Path:
        """Export a detector like the reference."""
        path = self.folder / name
        path.write_bytes(ONNXRUNTIME.exporter(module, torch.zeros(2, 3, 64, 64))(module))
        return path

    def changed(self, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
        """Return the detector with other weights."""
        module = copy.deepcopy(self.loaded.module)
        with torch.no_grad():
            change(module.state_dict())
        return self.written(module, "changed.onnx")


class _Reader(CalibrationDataReader):
    def __init__(self, images: np.ndarray[Any, Any], batch: int) -> None:
        self._parts = iter([{"images": images[low : low + batch]} for low in range(0, len(images), batch)])

    def get_next(self) -> Any:
        return next(self._parts, None)


# ---- made by quantizers, converters and simplifiers


def _float16(shop: Workshop, *, keep_ends: bool) -> ModelProto:
    """Return the reference in half precision, as converters write it."""
    model = shop.model
    for constant in model.graph.initializer:
        if constant.data_type == TensorProto.FLOAT:
            constant.CopyFrom(
                numpy_helper.from_array(numpy_helper.to_array(constant).astype(np.float16), constant.name)
            )
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "value" and attribute.t.data_type == TensorProto.FLOAT:
                attribute.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t).astype(np.float16)))
    del model.graph.value_info[:]
    if keep_ends:
        given, made = model.graph.input[0].name, model.graph.output[0].name
        for node in model.graph.node:
            node.input[:] = [f"{name}_half" if name == given else name for name in node.input]
            node.output[:] = [f"{name}_half" if name == made else name for name in node.output]
        model.graph.node.insert(0, helper.make_node("Cast", [given], [f"{given}_half"], to=TensorProto.FLOAT16))
        model.graph.node.append(helper.make_node("Cast", [f"{made}_half"], [made], to=TensorProto.FLOAT))
        return model
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return model


def _weights_stored(shop: Workshop, *, levels: int) -> ModelProto:
    """Return the reference with each weight as integers behind a DequantizeLinear, in so many steps."""
    model = shop.model
    for constant in list(model.graph.initializer):
        values = numpy_helper.to_array(constant)
        if values.ndim < 2 or values.dtype != np.float32:
            continue
        scale = np.float32(np.abs(values).max() / (levels // 2))
        stored = np.clip(np.rint(values / scale), -(levels // 2), levels // 2).astype(np.int8)
        model.graph.initializer.remove(constant)
        model.graph.initializer.extend(
            [
                numpy_helper.from_array(stored, f"{constant.name}_int"),
                numpy_helper.from_array(scale, f"{constant.name}_scale"),
            ]
        )
        read = helper.make_node("DequantizeLinear", [f"{constant.name}_int", f"{constant.name}_scale"], [constant.name])
        model.graph.node.insert(0, read)
    return model


def _renamed(shop: Workshop) -> ModelProto:
    """Return the reference with other names for everything inside, as another exporter writes it."""
    model = shop.model
    ends = {model.graph.input[0].name, model.graph.output[0].name}
    names = {each.name for each in model.graph.initializer} | {
        name for node in model.graph.node for name in node.output
    }
    new = {name: f"t{place}" for place, name in enumerate(sorted(names - ends))}
    for constant in model.graph.initializer:
        constant.name = new[constant.name]
    for place, node in enumerate(model.graph.node):
        node.name = f"n{place}"
        node.input[:] = [new.get(name, name) for name in node.input]
        node.output[:] = [new.get(name, name) for name in node.output]
    del model.graph.value_info[:]
    return model


def _before(shop: Workshop, nodes: Sequence[Any], given: Any, constants: Sequence[Any] = ()) -> ModelProto:
    """Return the reference with nodes before it, the last of which makes ``inside``, and another input."""
    model = shop.model
    name = model.graph.input[0].name
    for node in model.graph.node:
        node.input[:] = ["inside" if each == name else each for each in node.input]
    model.graph.input[0].CopyFrom(given)
    for node in reversed(nodes):
        model.graph.node.insert(0, node)
    model.graph.initializer.extend(constants)
    return model


def _after(
    shop: Workshop, node: Callable[[str, str], Any], constants: Sequence[Any] = (), *, place: int = 0, width: int = 0
) -> ModelProto:
    """Return the reference with one node behind an output, which makes it ``width`` wide if that changes."""
    model = shop.model
    output = model.graph.output[place]
    for each in model.graph.node:
        each.input[:] = ["inner" if name == output.name else name for name in each.input]
        each.output[:] = ["inner" if name == output.name else name for name in each.output]
    model.graph.node.append(node("inner", output.name))
    model.graph.initializer.extend(constants)
    if width:
        output.CopyFrom(helper.make_tensor_value_info(output.name, TensorProto.FLOAT, ["N", width]))
    return model


def _channels_last(shop: Workshop) -> ModelProto:
    given = helper.make_tensor_value_info("pictures", TensorProto.FLOAT, ["N", 32, 32, 1])
    return _before(shop, [helper.make_node("Transpose", ["pictures"], ["inside"], perm=[0, 3, 1, 2])], given)


def _normalising(shop: Workshop, *, whole: bool) -> ModelProto:
    """Return the reference behind its normalisation, for values from 0 to 255, which may be whole numbers."""
    given = helper.make_tensor_value_info(
        "pictures", TensorProto.UINT8 if whole else TensorProto.FLOAT, ["N", 1, 32, 32]
    )
    nodes = [
        helper.make_node("Cast", ["pictures"], ["as_float"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["as_float" if whole else "pictures", "offset"], ["apart"]),
        helper.make_node("Div", ["apart", "divisor"], ["inside"]),
    ]
    return _before(shop, nodes[not whole :], given, _constants(offset=255 * _MEAN, divisor=255 * _STD))


def _constants(**values: Any) -> list[TensorProto]:
    return [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in values.items()]


def _probabilities(shop: Workshop) -> ModelProto:
    return _after(shop, lambda given, made: helper.make_node("Softmax", [given], [made], axis=1))


def _more_outputs(shop: Workshop) -> ModelProto:
    model = shop.model
    inner = next(node.output[0] for node in model.graph.node if node.op_type == "GlobalAveragePool")
    model.graph.output.insert(0, onnx.ValueInfoProto(name=inner))
    return model


def _exported(name: str, **how: Any) -> Edit:
    """Export the network otherwise than the reference."""
    return lambda shop: shop.exported(load_demo_model().module, name, **how)


def _by_dynamo(shop: Workshop) -> Path:
    """Return the network by torch's newer exporter, whose names are others."""
    path = shop.folder / "dynamo.onnx"
    program = torch.onnx.export(load_demo_model().module, (torch.zeros(1, 1, 32, 32),), dynamo=True, verbose=False)
    assert program is not None
    program.save(str(path), external_data=True)
    return path


# ---- broken on purpose


def _changed(change: Callable[[dict[str, torch.Tensor]], None]) -> Edit:
    def make(shop: Workshop) -> Path:
        network = copy.deepcopy(load_demo_model().module)
        with torch.no_grad():
            change(network.state_dict())
        return shop.exported(network, "changed.onnx")

    return make


def _noise_in_one_layer(weights: dict[str, torch.Tensor]) -> None:
    layer = weights["layer3.0.conv1.weight"]
    layer.copy_(torch.randn(layer.shape, generator=torch.Generator().manual_seed(1)) * layer.std())


def _nan_in_one_layer(weights: dict[str, torch.Tensor]) -> None:
    weights["layer2.0.conv1.weight"][0, 0, 0, 0] = float("nan")


def _head_of_one_class(weights: dict[str, torch.Tensor]) -> None:
    weights["fc.weight"].zero_()
    weights["fc.bias"].copy_(torch.arange(10.0).flip(0))


def _other_norms(weights: dict[str, torch.Tensor]) -> None:
    weights["layer1.0.bn1.running_var"].mul_(400)


def _untrained(shop: Workshop) -> Path:
    torch.manual_seed(3)
    return shop.exported(build_demo_network(), "untrained.onnx")


def _reordered(shop: Workshop, order: Sequence[int], *, place: int = 0) -> ModelProto:
    """Return the reference with the last axis of an output, classes, in another order."""
    places = numpy_helper.from_array(np.asarray(order, np.int64), "order")
    width = 0 if place else len(order)
    return _after(shop, lambda given, made: helper.make_node("Gather", [given, "order"], [made], axis=-1), [places],
                  place=place, width=width)  # fmt: skip


def _sized(shop: Workshop, *shape: int) -> Path:
    network = load_demo_model().module
    if shape[0] == 3:
        network = torch.nn.Sequential(torch.nn.Conv2d(3, 1, 1), network)
    return shop.exported(network, "sized.onnx", shape=shape)


def _two_inputs(shop: Workshop) -> ModelProto:
    model = _after(shop, lambda given, made: helper.make_node("Mul", [given, "factor"], [made]))
    model.graph.input.append(helper.make_tensor_value_info("factor", TensorProto.FLOAT, [1]))
    return model


def _slow(shop: Workshop) -> ModelProto:
    """Return the reference with a convolution before it that multiplies by one, and 63 that do nothing."""
    given = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["N", 1, 32, 32])
    wide = np.zeros((64, 1, 7, 7), np.float32)
    wide[0, 0, 3, 3] = 1
    back = np.zeros((1, 64, 7, 7), np.float32)
    back[0, 0, 3, 3] = 1
    nodes = [
        helper.make_node("Conv", ["images", "wide"], ["many"], pads=[3, 3, 3, 3]),
        helper.make_node("Conv", ["many", "back"], ["inside"], pads=[3, 3, 3, 3]),
    ]
    return _before(shop, nodes, given, _constants(wide=wide, back=back))


def _halved_boxes(shop: Workshop) -> ModelProto:
    return _after(shop, lambda given, made: helper.make_node("Mul", [given, "factor"], [made]), _constants(factor=0.5))


def _noise_in_stem(weights: dict[str, torch.Tensor]) -> None:
    stem = next(each for name, each in weights.items() if name.endswith("weight") and each.dim() == 4)
    stem.copy_(torch.randn(stem.shape, generator=torch.Generator().manual_seed(1)) * stem.std())


def _file(shop: Workshop, content: bytes) -> Path:
    path = shop.folder / "file.onnx"
    path.write_bytes(content)
    return path


_broken = partial(Pair, expected=FAILS)
_refused = partial(Pair, expected=REFUSED)
_STATIC: dict[str, Any] = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}

PAIRS: tuple[Pair, ...] = (
    Pair("static int8, QDQ, per channel", partial(Workshop.quantized, per_channel=True, **_STATIC)),
    Pair("static int8, QDQ, per tensor", partial(Workshop.quantized, per_channel=False, **_STATIC)),
    Pair(
        "static int8, signed activations",
        lambda shop: shop.quantized(per_channel=True, **_STATIC | {"activation_type": QuantType.QInt8}),
    ),
    Pair("static int8, QOperator", lambda shop: shop.quantized(quant_format=QuantFormat.QOperator, **_STATIC)),
    Pair("dynamic int8, matrix products", lambda shop: shop.dynamic(op_types_to_quantize=["Gemm", "MatMul"])),
    Pair(
        "dynamic int8, convolutions too",
        lambda shop: shop.dynamic(op_types_to_quantize=["Conv", "Gemm", "MatMul"], weight_type=QuantType.QUInt8),
    ),
    Pair("float16 throughout", partial(_float16, keep_ends=False)),
    Pair("float16 between float32 ends", partial(_float16, keep_ends=True)),
    Pair("weights as 8-bit integers", partial(_weights_stored, levels=255)),
    Pair("norms not folded", _exported("norms.onnx", training=torch.onnx.TrainingMode.PRESERVE)),
    Pair("other names inside", _renamed),
    Pair("another exporter, weights in a file beside", _by_dynamo),
    Pair("input and output renamed", _exported("names.onnx", inputs="x", outputs="y")),
    Pair("channels last", _channels_last),
    Pair("pixels from 0 to 255, normalised inside", partial(_normalising, whole=True)),
    Pair("probabilities in place of scores", _probabilities),
    Pair("one image at a time", _exported("one.onnx", batch=1)),
    Pair("eight images at a time", _exported("8.onnx", batch=8)),
    Pair("features as a further output", _more_outputs),
    Pair("opset raised", lambda shop: version_converter.convert_version(shop.model, 21)),
    _broken("noise in one layer", _changed(_noise_in_one_layer), "points", parts_at="layer3/layer3.0/conv1"),
    _broken("norm of one layer damaged", _changed(_other_norms), "points", parts_at="layer1/layer1.0/conv1"),
    _broken("untrained weights", _untrained, "points", parts_at="conv1"),
    _broken("two classes exchanged", lambda shop: _reordered(shop, [1, 0, 2, 3, 4, 5, 7, 6, 9, 8]), "another order"),
    _broken("classes reversed", lambda shop: _reordered(shop, list(range(9, -1, -1))), "another order"),
    _broken(
        "other preprocessing: values from 0 to 255", partial(_normalising, whole=False), "with values from 0 to 255"
    ),
    _broken("not a number in one weight", _changed(_nan_in_one_layer), "not finite", parts_at="layer2/layer2.0/conv1"),
    _broken("one answer to everything", _changed(_head_of_one_class), "answers 0 to every image"),
    _broken("weights in three levels", partial(_weights_stored, levels=3), "points", parts_at="conv"),
    _broken(
        "calibrated on pixels that are not normalised",
        lambda shop: shop.quantized(images=(shop.images[:64] * _STD + _MEAN) * 25500, **_STATIC),
        "points",
        parts_at="from the first tensor on",
    ),
    _broken("a class too few", lambda shop: _reordered(shop, list(range(9))), "gives 9 numbers"),
    _broken(
        "a class too many",
        lambda shop: _reordered(shop, [0, *range(10)]),
        "gives 11 numbers for each image, the original 10: perhaps a class for the background",
    ),
    _broken("smaller images", lambda shop: _sized(shop, 1, 28, 28), "28 × 28 pixels"),
    _broken("colour images", lambda shop: _sized(shop, 3, 32, 32), "3 channels"),
    _broken("slower", _slow, "× the time", max_time=1.5),
    _refused("two inputs", _two_inputs, "2 inputs"),
    _refused(
        "cut short", lambda shop: _file(shop, shop.reference.read_bytes()[:20_000]), "ONNX model that was cut short"
    ),
    Pair("detector as it is", lambda shop: shop.reference, detects=True),
    Pair(
        "detector, static int8 of convolutions",
        lambda shop: shop.quantized(per_channel=True, op_types_to_quantize=["Conv"], **_STATIC),
        detects=True,
    ),
    Pair("detector, weights as 8-bit integers", partial(_weights_stored, levels=255), detects=True),
    _broken(
        "detector, noise in its first layer",
        lambda shop: cast(DetectorWorkshop, shop).changed(_noise_in_stem),
        "Objects lost",
        detects=True,
    ),
    _broken(
        "detector, two classes exchanged",
        lambda shop: _reordered(shop, [0, 2, 1, 3], place=1),
        "Objects lost",
        detects=True,
    ),
    _broken("detector, boxes of half the size", _halved_boxes, "Objects lost", detects=True),
    _broken(
        "detector, a class too few",
        lambda shop: _reordered(shop, [0, 1, 2], place=1),
        "3 classes in each image, the original 4",
        detects=True,
    ),
    _broken(
        "detector beside a classifier",
        lambda shop: Workshop(shop.folder).exported(load_demo_model().module, "classifier.onnx"),
        "1 channel",
        detects=True,
    ),
    _refused("a text", lambda shop: _file(shop, b"%PDF-1.7 no network"), "PDF document"),
    _refused("empty", lambda shop: _file(shop, b""), "nothing in it"),
)
SHORT = ("static int8, QDQ, per channel", "float16 throughout", "other names inside", "static int8, QOperator")
"""Names of the pairs that every test run makes."""
_ROUNDING = 2.5  # answers that may hang on the last bit of sums, which batches of other sizes decide
_MEASURED_ALIKE = frozenset(
    {
        *("float16 throughout", "channels last", "pixels from 0 to 255, normalised inside"),
        *("features as a further output", "not a number in one weight"),
    }
)
"""Those whose input or output the plain script does not take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a check said of a pair, and what is wrong with that; empty where it is right."""

    pair: Pair
    verdict: str
    said: str
    wrong: str
    report: CheckReport | None = None


def check_pair(pair: Pair, shop: Workshop, *, samples: int | None = None) -> Outcome:
    """Make a pair, check it, and compare the verdict with the expected one.

    With ``samples``, on so many of the images, and without a comparison with plain onnxruntime.
    """
    made = pair.make(shop)
    if isinstance(made, Path):
        candidate = made
    else:
        candidate = shop.folder / "candidate.onnx"
        onnx.save(made, candidate)
    spec = CheckSpec(
        reference=ModelSpec(library="onnx", checkpoint=str(shop.reference), task=shop.task),
        candidate=ModelSpec(library="onnx", checkpoint=str(candidate), task=shop.task),
        data=shop.data,
        max_drop=shop.lost,
        max_time=pair.max_time,
        num_samples=samples or shop.most_images,
    )
    try:
        report = check_files(spec, own_disk=True)
    except InvalidInput as error:
        return Outcome(pair=pair, verdict=REFUSED, said=str(error), wrong=_wrong(pair, REFUSED, str(error), None, ""))
    verdict = HOLDS if report.holds else FAILS
    said = " ".join((report.headline, *report.findings))
    is_compared = report.images and samples is None and pair.name not in _MEASURED_ALIKE and not pair.detects
    figures = _other_figures(report, candidate, shop) if is_compared else ""
    return Outcome(
        pair=pair, verdict=verdict, said=said, wrong=_wrong(pair, verdict, said, report, figures), report=report
    )


def _wrong(pair: Pair, verdict: str, said: str, report: CheckReport | None, figures: str) -> str:
    parting = divergence_sentence(report.divergence) if report is not None and report.divergence is not None else ""
    if verdict != pair.expected:
        return f"expected {pair.expected}"
    if pair.reason not in said:
        return f"the reason does not say {pair.reason!r}"
    if pair.parts_at and (report is None or report.divergence is None or report.divergence.first is None):
        return "no tensor parts"
    if pair.parts_at not in parting:
        return f"parts elsewhere: {parting}"
    return figures


def _other_figures(report: CheckReport, candidate: Path, shop: Workshop) -> str:
    """Return how the loss differs from that of both files in plain onnxruntime; empty where it does not."""
    before, after = (shop.scores(path).argmax(axis=1) for path in (shop.reference, candidate))
    drop = float((before == shop.labels).mean() - (np.nan_to_num(after) == shop.labels).mean())
    changed = float((before != after).mean())
    found, most = {change.metric: change.delta for change in report.changes}, _ROUNDING / len(shop.labels)
    if max(abs(found["top1"] - drop), abs(found["agreement"] - changed)) > most:
        return f"top-1 {found['top1']:.4f} in place of {drop:.4f}, agreement {found['agreement']:.4f} of {changed:.4f}"
    return ""
