"""What files compute in integers, and what they answer on processors without VNNI, each beside a count of its own.

``share_row`` counts products and their multiply-accumulates in what runtimes themselves report: onnxruntime's optimised
model and profile, OpenVINO's runtime model with the kernels that it chose, tensors of LiteRT's interpreter.
``processor_row`` runs a file on an emulated Haswell, which has AVX2 and no VNNI.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn

from benchmarks.results import keep
from senseapp.core.errors import SenseError
from senseapp.data.load import images_for
from senseapp.networks.network import in_calls
from senseapp.networks.sources.load import load_model
from senseapp.records.executed import IntegerShare
from senseapp.records.spec import DataSpec, ModelSpec
from senseapp.runtimes.base import runtime_named
from senseapp.runtimes.call_times import saturates
from senseapp.runtimes.onnxruntime.operations import default_int8
from senseapp.tasks import task_named
from tests.architectures import ARCHITECTURES

NETWORKS = (
    "resnet18",
    "tv_mobilenet_v3_small",
    "efficientnet_b0",
    "vit_tiny",
    "tv_swin",
    "convnext_atto",
    "regnety_002",
)
_EMULATOR, _PROCESSOR = "qemu-x86_64", "Haswell"
_IMAGES = 64


class Counted(NamedTuple):
    """Products, those in integers, and multiply-accumulates of both."""

    products: int
    integer_products: int
    macs: int
    integer_macs: int


def _counted(products: list[tuple[int, bool]]) -> Counted:
    inside = [macs for macs, in_integers in products if in_integers]
    return Counted(len(products), len(inside), sum(macs for macs, _ in products), sum(inside))


def _on_onnxruntime(content: bytes, shape: tuple[int, ...]) -> Counted:
    """Count in the optimised model that onnxruntime saves, without its layouts that pad channels; shapes are run."""
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(Path(folder) / "optimised.onnx")
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "profile")
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        session.run(None, {session.get_inputs()[0].name: np.zeros((1, *shape), np.float32)})
        events = json.loads(Path(session.end_profiling()).read_bytes())
        graph = onnx.load(options.optimized_model_filepath).graph
    weights = {each.name: each.dims for each in graph.initializer}
    shapes = {
        event["name"].removesuffix("_kernel_time"): [
            [dims for each in event["args"][side] for dims in each.values()]
            for side in ("input_type_shape", "output_type_shape")
        ]
        for event in events
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
    }
    found = []
    for node in graph.node:
        kind = node.op_type
        if not any(word in kind for word in ("Conv", "Gemm", "MatMul")):
            continue
        read, made = shapes[node.name]
        weight = next((weights[name] for name in node.input[1:] if len(weights.get(name, ())) > 1), None)
        if "Transpose" in kind and weight is not None and "Conv" in kind:
            macs = math.prod(read[0]) * math.prod(weight[1:])
        elif "Conv" in kind:
            assert weight is not None
            macs = math.prod(made[0]) * math.prod(weight[1:])
        else:
            turned = any(each.name == "transA" and each.i for each in node.attribute)
            macs = math.prod(made[0]) * read[0][-2 if turned else -1]
        found.append((macs, kind.startswith("Q") or "Integer" in kind))
    return _counted(found)


def _on_openvino(content: bytes, shape: tuple[int, ...]) -> Counted:
    """Count in the model that OpenVINO executes, by the names of the kernels that it chose."""
    from senseapp.compat.openvino_internals import openvino  # without its telemetry

    core = openvino.Core()
    network = core.read_model(content, b"")
    network.reshape([1, *shape])
    compiled = core.compile_model(network, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = []
    for node in compiled.get_runtime_model().get_ordered_ops():
        about = {key: str(value.astype(str)) for key, value in node.get_rt_info().items() if key != "execTimeMcs"}
        kind = about["layerType"]
        made = math.prod(node.output(0).get_shape())
        if kind in ("Convolution", "GroupConvolution"):
            weight = node.input(1).get_shape()
            macs = made * math.prod(weight) // node.output(0).get_shape()[1]
        elif kind == "Deconvolution":
            macs = (
                math.prod(node.input(0).get_shape())
                * math.prod(node.input(1).get_shape())
                // node.input(0).get_shape()[1]
            )
        elif kind == "FullyConnected":
            macs = made * math.prod(node.input(1).get_shape()) // node.output(0).get_shape()[-1]
        elif kind == "MatMul":
            read = [math.prod(node.input(place).get_shape()) for place in range(2)]
            outer, (rows, columns) = math.prod(node.output(0).get_shape()[:-2]), node.output(0).get_shape()[-2:]
            assert read[0] // (outer * rows) == read[1] // (outer * columns)
            macs = made * read[0] // (outer * rows)
        elif kind == "Subgraph" and "softmax" in about["originalLayersNames"].lower() and node.get_input_size() > 2:
            asked = node.input(0).get_shape()  # attention in one kernel: queries, keys, offsets, values
            keys, width = list(node.input(node.get_input_size() - 1).get_shape())[-2:]
            places = math.prod(asked[:-1]) * keys
            found += [(places * each, about["primitiveType"].endswith("I8")) for each in (asked[-1], width)]
            continue
        else:
            continue
        found.append((macs, about["primitiveType"].endswith("I8")))
    return _counted(found)


def _on_litert(content: bytes, shape: tuple[int, ...]) -> Counted:
    """Count in the operators of LiteRT's interpreter, before its delegate replaces them."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    plain = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(model_content=content, experimental_op_resolver_type=plain)
    interpreter.allocate_tensors()
    tensors = {each["index"]: each for each in interpreter.get_tensor_details()}
    found = []
    for each in interpreter._get_ops_details():
        kind, reads = each["op_name"], [tensors[place] for place in each["inputs"] if place >= 0]
        made = tensors[each["outputs"][0]]
        size = int(np.prod(made["shape"]))
        if kind in ("CONV_2D", "FULLY_CONNECTED"):
            macs = size * int(np.prod(reads[1]["shape"][1:]))
        elif kind == "DEPTHWISE_CONV_2D":
            macs = size * int(np.prod(reads[1]["shape"][1:3]))
        elif kind == "BATCH_MATMUL":
            macs = size * int(reads[0]["shape"][-1])
        elif kind == "TRANSPOSE_CONV":
            macs = int(np.prod(reads[2]["shape"])) * int(np.prod(reads[1]["shape"][1:]))
        else:
            continue
        data = reads[2] if kind == "TRANSPOSE_CONV" else reads[0]
        found.append((macs, np.dtype(data["dtype"]).kind in "iu"))
    return _counted(found)


_COUNTS: dict[str, Callable[[bytes, tuple[int, ...]], Counted]] = {
    "onnxruntime": _on_onnxruntime,
    "openvino": _on_openvino,
    "litert": _on_litert,
}


def share_row(name: str, runtime_name: str) -> None:
    """Count both ways in a network all in int8, and in one with every third product in float."""
    network, size = ARCHITECTURES[name].build(), ARCHITECTURES[name].size
    shape, runtime = (3, size, size), runtime_named(runtime_name)
    images = torch.randn(8, *shape, generator=torch.Generator().manual_seed(0))
    row: dict[str, object] = {"network": name, "runtime": runtime_name}
    try:
        quantizer = runtime.quantizer(runtime.exporter(network, images[:2])(network), [images])
        nodes = quantizer.nodes(quantizer.write())
        equal = [
            _both(row, title, content, runtime_name, shape, kept)
            for title, kept in (("int8", ()), ("a third in float", nodes[::3]))
            for content in [quantizer.write(weights_only=kept)]
        ]
        row["equal"] = "yes" if all(equal) else "no"
    except SenseError as error:
        row["equal"] = f"refused: {error}"[:160]
    keep("devices_integers", row, named_by=2)


def _both(
    row: dict[str, object], title: str, content: bytes, runtime: str, shape: tuple[int, ...], kept: tuple[str, ...]
) -> bool:
    ours = IntegerShare.of(runtime_named(runtime).executed(content), kept=kept, layers={})
    own = _COUNTS[runtime](content, shape)
    assert ours is not None
    found = _counted([(each.macs, each.in_integers) for each in ours.products])
    for who, each in (("ours", found), ("own count", own)):
        share = f"{100 * each.integer_macs / each.macs:.2f} % of {each.macs}"
        row[f"{title}: {who}"] = f"{share}, {each.integer_products} of {each.products}"
    return found == own


def _digits(*, loud: bool) -> tuple[nn.Module, torch.Tensor]:
    """Return the digits' network and images; ``loud`` ones have weights of like size, whose sums saturate often."""
    loaded = load_model(ModelSpec())
    data = DataSpec(kind="demo", mean=(0.304,), std=(0.323,))
    found = images_for(loaded, data, task=task_named("classification"), num_samples=2 * _IMAGES, seed=0)
    module, images = loaded.module, found.batch(0, 2 * _IMAGES).cpu()
    if loud:
        norms = [each for each in module.modules() if isinstance(each, nn.BatchNorm2d)]
        with torch.no_grad():
            for each in module.modules():
                if isinstance(each, nn.Conv2d):
                    each.weight.copy_(each.weight.sign() * each.weight.abs().clamp_min(each.weight.abs().max() / 2))
            for each in norms:
                each.momentum = 1.0
                each.train()
            module(images)
            module.eval()
    return module, images


_SCRIPT = """
import sys, numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
images = numpy.load(sys.argv[2])
calls = [session.run(None, {session.get_inputs()[0].name: images[at : at + 8]})[0] for at in range(0, len(images), 8)]
numpy.save(sys.argv[3], numpy.concatenate(calls))
"""


def _on_haswell(content: bytes, images: torch.Tensor) -> torch.Tensor:
    """Return what onnxruntime computes on the emulated processor, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("file.onnx", "images.npy", "found.npy")]
        paths[0].write_bytes(content)
        np.save(paths[1], images.numpy())
        python, packages = os.path.realpath(sys.executable), Path(onnxruntime.__file__).parents[1]
        subprocess.run(
            [_EMULATOR, "-cpu", _PROCESSOR, python, "-c", _SCRIPT, *map(str, paths)],
            env={**os.environ, "PYTHONPATH": str(packages)},
            check=True,
            stderr=subprocess.DEVNULL,
        )
        return torch.from_numpy(np.load(paths[2]))


def processor_row(name: str) -> None:
    """Compare a file's answers here and as computed for processors without VNNI with those of an emulated one."""
    if saturates() or shutil.which(_EMULATOR) is None:
        raise SystemExit(f"This needs a processor with VNNI and {_EMULATOR}.")
    module, images = _digits(loud="loud" in name)
    runtime, shown = runtime_named("onnxruntime"), images[:_IMAGES]
    content = runtime.exporter(module, images[:2])(module)
    calibration = [images[_IMAGES:]]
    if "quantize_static" in name:
        file = default_int8(content, calibration).content
    else:
        file = runtime.quantizer(content, calibration).write()
    with torch.inference_mode():
        wanted = module(shown)
    here, other = runtime.open(file).run(shown), runtime.on_other_processors(file)
    computed = here if other is None else torch.cat([other.run(part) for part in in_calls(other, shown)])
    emulated = _on_haswell(file, shown)
    row: dict[str, object] = {"file": name, "images": len(shown)}
    for title, found in (("with VNNI, here", here), ("without, computed", computed), ("Haswell, emulated", emulated)):
        row[title] = _figures(wanted, found)
    row["answers of both alike"] = f"{(computed.argmax(1) == emulated.argmax(1)).float().mean():.3f}"
    row["equal outputs here and there"] = "yes" if torch.equal(here, emulated) else "no"
    keep("devices_processors", row)


def _figures(wanted: torch.Tensor, found: torch.Tensor) -> str:
    """Return the share of answers kept, and the mean KL divergence in nats."""
    before, after = wanted.log_softmax(1), found.log_softmax(1)
    kept = (before.argmax(1) == after.argmax(1)).float().mean()
    return f"{kept:.3f} of answers kept, KL {(before.exp() * (before - after)).sum(1).mean():.4f}"


FILES = ("digits, ours", "digits, quantize_static", "loud digits, ours", "loud digits, quantize_static")
