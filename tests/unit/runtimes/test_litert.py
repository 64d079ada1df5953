"""LiteRT files against torch and LiteRT's own interpreter; only where the extra ``litert`` is installed."""

import json
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from senseapp.compressions.quantization.grid import GRIDS, IntegerWeight, scale_of
from senseapp.core.errors import InvalidSpec
from senseapp.networks.loaded import Preprocessing
from senseapp.networks.onnx.metadata import told_of

pytest.importorskip("litert_torch", reason="the extra litert is not installed")
pytestmark = pytest.mark.slow

from ai_edge_litert.interpreter import Interpreter, OpResolverType  # noqa: E402
from ai_edge_litert.schema_py_generated import TensorType  # noqa: E402

from senseapp.records.deployment import DeploySettings  # noqa: E402
from senseapp.records.executed import IntegerShare  # noqa: E402
from senseapp.runtimes.base import runtime_named  # noqa: E402
from senseapp.runtimes.litert.file import operators, parsed, texts  # noqa: E402
from senseapp.runtimes.litert.rounding import products, tensors_of, with_products  # noqa: E402
from senseapp.runtimes.onnxruntime.rounding.ranges import observed_ranges  # noqa: E402
from senseapp.runtimes.onnxruntime.rounding.weights import rounded_products  # noqa: E402
from senseapp.runtimes.quantizers import Fitting  # noqa: E402


class Small(nn.Module):
    """Two convolutions, a pooling between them that only moves values, and a branch."""

    def __init__(self, *, several=False):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.pool = nn.MaxPool2d(2)
        self.conv_last = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)
        self.several = several

    def forward(self, images):
        found = self.pool(self.stem(images))
        found = found + self.conv_last(found)
        scores = self.head(found.mean(dim=(2, 3)))
        return {"scores": scores, "map": found} if self.several else scores


@pytest.fixture(scope="module")
def runtime():
    return runtime_named("litert")


@pytest.fixture(scope="module")
def images():
    return torch.randn(24, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def network():
    return Small().eval()


@pytest.fixture(scope="module")
def content(runtime, network, images):
    return runtime.exporter(network, images)(network)


def answers(runtime, content, images):
    return torch.cat([runtime.open(content).run(each[None]) for each in images])


def relative_error(found, wanted):
    return float((found - wanted).norm() / wanted.norm())


def test_a_file_answers_as_torch_does(runtime, network, images, content):
    with torch.no_grad():
        assert relative_error(answers(runtime, content, images), network(images)) < 1e-5


def test_several_outputs_are_nested_as_in_the_network(runtime, images):
    network = Small(several=True).eval()
    found = runtime.open(runtime.exporter(network, images)(network)).run(images[:1])
    with torch.no_grad():
        wanted = network(images[:1])
    assert found.keys() == wanted.keys()
    assert all(relative_error(found[name], wanted[name]) < 1e-5 for name in wanted)


def test_layers_are_found_in_names_of_operators(runtime, content):
    layers = ["stem.0", "conv_last", "head"]
    assert sorted(runtime.layers_of_nodes(content, layers).values()) == sorted(layers)


def test_products_are_counted(content):
    assert sum(each.macs for each in operators(content)) == 16 * 16 * 8 * 27 + 8 * 8 * 8 * 72 + 8 * 5


def test_products_in_integers_are_those_with_integers_in_the_interpreter(runtime, images, content):
    quantizer = runtime.quantizer(content, [images])
    layers = runtime.layers_of_nodes(content, ["stem.0", "conv_last", "head"])
    kept = [node for node, layer in layers.items() if layer == "conv_last"]
    file = quantizer.write(but=kept)
    found = IntegerShare.of(runtime.executed(file), kept=kept, layers=layers)
    interpreter = Interpreter(
        model_content=file, experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    )
    tensors = {each["index"]: each["dtype"] for each in interpreter.get_tensor_details()}
    run = [each for each in interpreter._get_ops_details() if each["op_name"] not in ("QUANTIZE", "DEQUANTIZE")]
    integers = [each for each in run if tensors[each["outputs"][0]] is np.int8]
    assert (found.nodes, found.integer_nodes) == (len(run), len(integers))
    products = [each for each in integers if each["op_name"] in ("CONV_2D", "FULLY_CONNECTED")]
    assert (len(found.products), len(products)) == (3, 2)
    assert [(each.name, each.reason) for each in found.in_float] == [("conv_last", "8 bits harm the answers")]
    macs = (16 * 16 * 8 * 27, 8 * 8 * 8 * 72, 8 * 5)
    assert (found.macs, found.share) == (sum(macs), 1 - macs[1] / sum(macs))


def test_int8_differs_little_and_operators_in_float_less(runtime, network, images, content):
    quantizer = runtime.quantizer(content, [images])
    with torch.no_grad():
        wanted = network(images)
    every = quantizer.write()
    nodes = quantizer.nodes(every)
    assert {each.kind for each in operators(content) if each.name in nodes} >= {"CONV_2D", "ADD", "FULLY_CONNECTED"}
    errors = [
        relative_error(answers(runtime, each, images), wanted)
        for each in (every, quantizer.write(weights_only=nodes), quantizer.write(but=nodes))
    ]
    assert 0.2 > errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-5
    assert quantizer.nodes(quantizer.write(but=nodes[:1])) == nodes[1:]
    assert len(every) < len(content)


@pytest.mark.parametrize(("int8_ends", "kind"), [(False, np.float32), (True, np.int8)])
def test_inputs_and_outputs_are_as_chosen(int8_ends, kind, runtime, images, content):
    fitting = Fitting(batches=[images], int8_ends=int8_ends)
    quantizer = runtime.fitted_quantizer(content, fitting)
    nodes = quantizer.nodes(quantizer.write())
    files = [quantizer.write(), quantizer.write(but=nodes[:1]), runtime.default_int8(content, fitting).content]
    for file in files:
        interpreter = Interpreter(model_content=file)
        ends = [*interpreter.get_input_details(), *interpreter.get_output_details()]
        assert {each["dtype"] for each in ends} == {kind}
        assert relative_error(answers(runtime, file, images), answers(runtime, content, images)) < 0.2


def test_other_runtimes_and_float_files_refuse_int8_inputs():
    with pytest.raises(InvalidSpec, match="Only int8 files for LiteRT"):
        DeploySettings(int8_ends=True)
    with pytest.raises(InvalidSpec, match="Only int8 files for LiteRT"):
        DeploySettings(int8_ends=True, kind="float", runtime="litert")


def test_activations_of_16_bits_are_integers_that_hardly_differ_from_float(runtime, images, content, tmp_path):
    from litert_quantizer.quantizer import Quantizer

    fitting = Fitting(batches=[images], activation_bits=16)
    own, quantizer = runtime.default_int8(content, fitting), runtime.fitted_quantizer(content, fitting)
    assert fitting.steps.notes == []
    assert own.setting == "litert-quantizer, static_wi8_ai16, min-max"
    assert all("Activations have 16 bits" in notes[-1] for notes in (own.notes, quantizer.notes))
    file, narrow = quantizer.write(), runtime.quantizer(content, [images]).write()
    wanted = answers(runtime, content, images)
    errors = [relative_error(answers(runtime, each, images), wanted) for each in (file, own.content, narrow)]
    assert errors[0] < errors[1] < errors[2]
    interpreter = Interpreter(
        model_content=file, experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    )
    tensors = {each["index"]: each["dtype"] for each in interpreter.get_tensor_details()}
    run = [each for each in interpreter._get_ops_details() if each["op_name"] not in ("QUANTIZE", "DEQUANTIZE")]
    assert {tensors[each["outputs"][0]] for each in run} == {np.int16}
    weights = [tensors[each["inputs"][1]] for each in run if each["op_name"] in ("CONV_2D", "FULLY_CONNECTED")]
    assert weights == [np.int8] * 3
    ends = [*interpreter.get_input_details(), *interpreter.get_output_details()]
    assert {each["dtype"] for each in ends} == {np.float32}
    assert IntegerShare.of(runtime.executed(file), kept=(), layers={}).share == 1
    recipe = tmp_path / "recipe.json"
    recipe.write_text(runtime.recipes(file)["litert_quantizer.json"])
    library = Quantizer(bytearray(content), str(recipe))
    ranges = library.calibrate({"serving_default": [{"args_0": each[None].numpy()} for each in images]})
    assert bytes(library.quantize(ranges).quantized_model) == own.content


@pytest.mark.parametrize("asked", [{}, {"kind": "int8"}, {"runtime": "litert"}, {"int8_ends": True}])
def test_other_files_refuse_16_bit_activations(asked):
    DeploySettings(kind="int8", runtime="litert", activation_bits=16)
    asked = {"kind": "int8", "runtime": "litert"} | asked if "int8_ends" in asked else asked
    with pytest.raises(InvalidSpec, match="Only LiteRT files all in int8"):
        DeploySettings(activation_bits=16, **asked)


@pytest.mark.parametrize("int8_ends", [False, True])
def test_the_recipe_of_a_file_makes_it_again_in_the_library(int8_ends, runtime, images, content, tmp_path):
    from litert_quantizer.quantizer import Quantizer

    quantizer = runtime.quantizer(content, [images])
    quantizer.int8_ends = int8_ends
    nodes = quantizer.nodes(quantizer.write())
    mixed = quantizer.write(but=nodes[:1], weights_only=nodes[1:2])
    recipe = tmp_path / "recipe.json"
    recipe.write_text(runtime.recipes(mixed)["litert_quantizer.json"])
    library = Quantizer(bytearray(content), str(recipe))
    (signature,) = parsed(content).signatureDefs
    key, name = signature.signatureKey.decode(), signature.inputs[0].name.decode()
    ranges = library.calibrate({key: [{name: each[None].numpy()} for each in images]})
    assert bytes(library.quantize(ranges).quantized_model) == mixed
    assert (key, name) == ("serving_default", "args_0")  # as the recipe's text says


@pytest.mark.parametrize("int8_ends", [False, True])
def test_the_kit_runs_a_file_on_a_picture_without_senseapp(int8_ends, runtime, images, content, tmp_path):
    preparation = Preprocessing(input_shape=(3, 16, 16), mean=(0.5,) * 3, std=(0.25,) * 3, crop_pct=1.0)
    quantizer = runtime.quantizer(content, [images])
    quantizer.int8_ends = int8_ends
    rounded = quantizer.write()
    named = runtime.described(rounded, told_of(preprocessing=preparation, class_names=list("abcde")))
    (tmp_path / "net.tflite").write_bytes(named)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8))
    picture.save(tmp_path / "picture.png")
    kit = runtime.kit("net.tflite")
    for file, text in kit.items():
        (tmp_path / file).write_text(text)
    assert "install -q ai-edge-litert " in json.loads(kit["predict.ipynb"])["cells"][1]["source"]
    command = [sys.executable, "-I", "predict.py", "net.tflite", "picture.png"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120).stdout
    pixels = torch.from_numpy((np.asarray(picture, dtype=np.float32) / 255 - 0.5) / 0.25).permute(2, 0, 1)
    shares = answers(runtime, named, pixels[None]).softmax(1)[0]
    best = int(shares.argmax())
    assert printed.splitlines()[0].split() == [f"{100 * float(shares[best]):.1f}", "%", "abcde"[best]]


def test_a_file_holds_what_a_program_needs(runtime, images, content):
    preparation = Preprocessing(input_shape=(3, 16, 16), mean=(0.5,) * 3, std=(0.25,) * 3, crop_pct=1.0)
    told = runtime.described(
        content, told_of(preprocessing=preparation, class_names=["a", "b"], thresholds=(0.25, 0.5))
    )
    assert runtime.class_names(told) == ("a", "b")
    assert texts(told)["senseapp.score_threshold"] == b"0.25"
    assert runtime.format_version(told) == 3
    assert torch.equal(answers(runtime, told, images[:2]), answers(runtime, content, images[:2]))
    rounded = runtime.quantizer(content, [images]).write()
    named = runtime.described(rounded, told_of(preprocessing=preparation, class_names=["a", "b"]))
    assert torch.equal(answers(runtime, named, images[:2]), answers(runtime, rounded, images[:2]))
    again = runtime.described(told, told_of(preprocessing=preparation, class_names=["c"]))
    assert runtime.class_names(again) == ("c",)


def test_times_of_layers_share_that_of_the_file(runtime, images, content):
    quantizer = runtime.quantizer(content, [images])
    owners = runtime.layers_of_nodes(content, ["stem.0", "conv_last", "head"])
    times = runtime.time_layers(content, quantizer, owners).times
    by_layer = {each.layer: each.seconds for each in times if each.level == 32}
    assert by_layer["conv_last"] / by_layer["head"] == pytest.approx(8 * 8 * 8 * 72 / 40, rel=0.05)


@pytest.mark.parametrize("damage", [b"", b"no file", b"\0\0\0\0TFL3", b"\x1c\0\0\0TFL3" + b"\xff" * 64])
def test_what_is_no_file_is_refused(runtime, damage):
    with pytest.raises(InvalidSpec):
        runtime.open(damage)


def test_what_the_converter_lacks_is_refused_in_a_sentence(runtime, images):
    class Unknown(nn.Module):
        def forward(self, images):
            return torch.linalg.svdvals(images)

    with pytest.raises(InvalidSpec, match="cannot be written for LiteRT"):
        runtime.exporter(Unknown(), images)(Unknown())


def test_fitted_weights_and_ranges_do_less_harm(runtime, network, images, content):
    with torch.no_grad():
        wanted = network(images)

    def damages_of(opened):
        return [relative_error(torch.cat([opened.run(each[None]) for each in images]), wanted)]

    fitting = Fitting(batches=[images])
    fitted, plain = runtime.fitted_quantizer(content, fitting), runtime.quantizer(content, [images])
    assert fitting.steps.notes == []
    every, usual = fitted.write(), plain.write()
    assert fitted.nodes(every) == plain.nodes(usual)
    assert len(every) <= len(usual)
    assert damages_of(runtime.open(every)) < damages_of(runtime.open(usual))
    nodes = plain.nodes(usual)
    weights, own = fitted.write(weights_only=nodes), plain.write(weights_only=nodes)
    assert damages_of(runtime.open(weights)) < damages_of(runtime.open(own))
    assert fitted.write(but=nodes) == plain.write(but=nodes)


class Kinds(nn.Module):
    """Each kind of product, with strides, dilations, groups and uneven padding."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.depth = nn.Conv2d(8, 8, 5, padding=2, groups=8)
        self.wide = nn.Conv2d(8, 12, 3, padding=2, dilation=2)
        self.head = nn.Linear(12, 5, bias=False)

    def forward(self, images):
        return self.head(self.wide(self.depth(self.stem(images))).mean(dim=(2, 3)))


@pytest.fixture(scope="module")
def kinds(runtime, images):
    network = Kinds().eval()
    return runtime.exporter(network, images)(network)


def sums_of(node, read, weight, offsets):
    """Return the outputs of a product (positions, O) for what it reads, in any order of positions."""
    rows = node.rows(read, 10**6, torch.Generator().manual_seed(0))
    sums = (rows @ node.matrix(weight).transpose(1, 2)).transpose(0, 1).flatten(1)
    return sums if offsets is None else sums + offsets


def test_products_are_read_as_they_compute(images, kinds):
    found = products(kinds)
    assert [(each.kind, each.groups) for each in found] == [("Conv", 1), ("Conv", 8), ("Conv", 1), ("Gemm", 1)]
    (values,) = tensors_of(kinds, [images[:2]], [each for node in found for each in (node.input, node.node)])
    for each in found:
        sums, made = sums_of(each, values[each.input], each.values, each.offsets), values[each.node].flatten(0, -2)
        assert torch.allclose(sums.mean(0), made.mean(0), atol=1e-4)
        assert torch.allclose(sums.square().mean(0), made.square().mean(0), rtol=1e-3, atol=1e-5)


def test_a_file_computes_with_the_integers_that_were_fitted(runtime, images, kinds):
    usual, nodes = runtime.quantizer(kinds, [images]).write(), products(kinds)
    names = [each.input for each in nodes]
    rounded = rounded_products(
        kinds,
        [images],
        nodes,
        observed_ranges(tensors_of(kinds, [images], names), "minmax", images=names[0]),
        paired=False,
        progress=lambda _step: None,
        tensors=tensors_of,
    )
    stored = with_products(usual, rounded)
    assert stored != usual
    assert len(stored) <= len(usual)
    (values,) = tensors_of(stored, [images[:2]], [each.node for each in nodes])
    for before, each in pairwise(nodes):
        if before.node != each.input:
            continue
        found = rounded[each.node]
        weight, offsets = torch.from_numpy(found.integers * found.spread), torch.from_numpy(found.bias)
        sums, made = sums_of(each, values[before.node], weight, offsets), values[each.node].flatten(0, -2)
        step = float(made.max() - made.min()) / 255
        assert float((sums.mean(0) - made.mean(0)).abs().max()) < step


def test_weights_of_few_bits_are_stored_in_8_or_4(runtime, images):
    network, layers = Kinds().eval(), {"stem": 4, "depth": 4, "wide": 8, "head": 4}
    integers = {}
    for name, bits in layers.items():
        weight = network.get_submodule(name).weight
        integers[name] = IntegerWeight.of(weight, scale_of(weight, bits=bits), GRIDS["int"](bits))
        weight.data.copy_(integers[name].dequantized())
    content = runtime.exporter(network, images)(network)
    owners = runtime.layers_of_nodes(content, list(layers))
    found, stored = runtime.with_quantized_weights(content, {node: integers[layer] for node, layer in owners.items()})
    assert stored == 4
    assert len(found) < len(content)
    assert relative_error(answers(runtime, found, images), answers(runtime, content, images)) < 1e-5
    model = parsed(found)
    kinds = [each.type for each in model.subgraphs[0].tensors if each.type in (TensorType.INT4, TensorType.INT8)]
    assert sorted(kinds) == sorted([TensorType.INT4, TensorType.INT8] * 2)
    assert runtime.with_quantized_weights(content, {}) == (content, 0)


def test_of_networks_with_layer_norms_products_alone_are_in_int8(runtime):
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 4, stride=4), nn.Flatten(2), nn.LayerNorm(16), nn.Linear(16, 8), nn.GELU(), nn.Flatten()
    )
    images = torch.randn(8, 3, 16, 16)
    content = runtime.exporter(network.eval(), images)(network)
    quantizer = runtime.quantizer(content, [images])
    every = quantizer.write()
    kinds = {each.name: each.kind for each in operators(content)}
    assert {kinds[name] for name in quantizer.nodes(every)} == {"CONV_2D", "FULLY_CONNECTED"}
    assert "layer norms" in quantizer.notes[0]
    whole = runtime.default_int8(content, Fitting(batches=[images])).content
    assert {kinds[name] for name in quantizer.nodes(whole)} > {"CONV_2D", "FULLY_CONNECTED", "RSQRT"}
    with torch.no_grad():
        wanted = network(images)
    assert relative_error(answers(runtime, every, images), wanted) < relative_error(
        answers(runtime, whole, images), wanted
    )
