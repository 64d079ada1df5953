"""Nodes that the operator table lacks: refused by name, or computed by onnxruntime inside the measured network."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

from senseapp.compressions import PruningConfig, SparsityConfig
from senseapp.core.errors import InvalidSpec, UnsupportedModel
from senseapp.data.images import TensorImages
from senseapp.measure.sweep import Sweep
from senseapp.networks.network import abilities_of
from senseapp.networks.onnx.modules import ImageInput
from senseapp.networks.onnx.open import OpenedOnnx, open_onnx
from senseapp.networks.onnx.source import examine_onnx, load_onnx
from senseapp.networks.onnx.torch_graph import UnreadNode
from senseapp.networks.onnx.write import with_weights
from senseapp.records.spec import ModelSpec, SensitivitySpec
from senseapp.tasks import task_named
from tests.onnx_graphs import by_onnxruntime, file_of, node, weights

FLOAT = TensorProto.FLOAT
STEM = node("Conv", "x w", "c", pads=[1, 1, 1, 1])
TAIL = [
    node("Conv", "i w3", "d", pads=[1, 1, 1, 1]),
    node("Relu", "d", "r"),
    node("GlobalAveragePool", "r", "g"),
    node("Flatten", "g", "y"),
]
OWN = {"w": weights(8, 3, 3, 3), "w3": weights(5, 8, 3, 3, seed=3)}


def with_a_loop() -> bytes:
    """Three passes of one convolution, whose weight the body reads from outside."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Conv", ["state", "w2"], ["inner"], pads=[1, 1, 1, 1]),
            helper.make_node("Tanh", ["inner"], ["next"]),
            helper.make_node("Identity", ["going"], ["goes_on"]),
        ],
        "body",
        [
            value("n", TensorProto.INT64, []),
            value("going", TensorProto.BOOL, []),
            value("state", TensorProto.FLOAT, None),
        ],
        [value("goes_on", TensorProto.BOOL, []), value("next", TensorProto.FLOAT, None)],
    )
    loop = helper.make_node("Loop", ["count", "start", "c"], ["i"], name="loop", body=body)
    more = {"w2": weights(8, 8, 3, 3, seed=1) / 9, "count": np.array(3), "start": np.array(True)}
    return file_of([STEM, loop, *TAIL], {**OWN, **more})


def with_offsets() -> bytes:
    """A deformable convolution, of opset 19."""
    nodes = [STEM, node("Conv", "x v", "o", pads=[1, 1, 1, 1]), node("DeformConv", "c k o", "i", pads=[1, 1, 1, 1])]
    return file_of([*nodes, *TAIL], {**OWN, "v": weights(18, 3, 3, 3) / 9, "k": weights(8, 8, 3, 3)}, opset=19)


def in_dynamic_integers() -> bytes:
    """What a quantizer without calibration writes."""
    nodes = [
        *(STEM, node("DynamicQuantizeLinear", "c", "q s z"), node("ConvInteger", "q k z", "j", pads=[1, 1, 1, 1])),
        *(node("Cast", "j", "f", to=TensorProto.FLOAT), node("Mul", "s scale", "m"), node("Mul", "f m", "i"), *TAIL),
    ]
    integers = (weights(8, 8, 3, 3, seed=1) * 40).astype(np.int8)
    return file_of(nodes, {**OWN, "k": integers, "scale": np.array(0.02, np.float32)})


def in_integers() -> bytes:
    """What a quantizer writes whose operators compute in integers."""
    nodes = [
        *(STEM, node("QuantizeLinear", "c s z", "q"), node("QLinearConv", "q s z k t u s z", "j", pads=[1, 1, 1, 1])),
        *(node("DequantizeLinear", "j s z", "i"), *TAIL),
    ]
    numbers = {"k": (weights(8, 8, 3, 3, seed=1) * 40).astype(np.int8), "u": np.array(0, np.int8)}
    scales = {"s": np.array(0.1, np.float32), "t": np.array(0.02, np.float32), "z": np.array(120, np.uint8)}
    return file_of(nodes, {**OWN, **numbers, **scales})


def of_the_runtime() -> bytes:
    """A form of an operator of onnxruntime that is not read: a convolution with a sum and an activation."""
    fused = helper.make_node(
        "FusedConv", ["c", "k", "", "c"], ["i"], domain="com.microsoft", pads=[1, 1, 1, 1], activation="Relu"
    )
    return file_of([STEM, fused, *TAIL], {**OWN, "k": weights(8, 8, 3, 3, seed=1)})


FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "loop": (with_a_loop, "“loop” (Loop)"),
    "deformable": (with_offsets, "“i” (DeformConv)"),
    "dynamic integers": (in_dynamic_integers, "“q” (DynamicQuantizeLinear)"),
    "integers": (in_integers, "“q” (QuantizeLinear)"),
    "operator of the runtime": (of_the_runtime, "“FusedConv_1” (com.microsoft::FusedConv)"),
}


def run(content: bytes, images: torch.Tensor) -> np.ndarray:
    return np.concatenate([by_onnxruntime(content, each[None])[0] for each in images])


@pytest.mark.parametrize("name", FILES)
def test_what_is_not_read_is_refused_until_it_is_left_to_the_runtime(name: str) -> None:
    make, title = FILES[name]
    content = make()
    if name == "loop":  # the network may end before it
        assert open_onnx(content).barrier == title
    else:
        with pytest.raises(UnreadNode):
            open_onnx(content)
    opened = open_onnx(content, in_runtime=True)
    assert opened.network.in_runtime[0] == title
    images = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    opened.network.images = ImageInput(batch=opened.batch)
    found = copy.deepcopy(opened.network)(images).detach().numpy()
    expected = run(content, images)
    # An integer in another place moves by one step where a sum's last bit decides.
    within = 2e-2 if "integers" in name else 1e-6
    assert np.abs(found - expected).max() <= within * np.abs(expected).max()


def test_ranges_of_a_whole_pass_keep_the_file_at_its_own_batch() -> None:
    assert open_onnx(with_a_loop(), in_runtime=True).batch is None
    opened = open_onnx(in_dynamic_integers(), in_runtime=True)
    assert opened.batch == 1
    assert any("rounds within the range of all images of a pass" in note for note in opened.notes)


@pytest.mark.parametrize(
    "nodes",
    [
        [node("NonZero", "x", "y")],
        [node("RandomNormalLike", "x", "z"), node("Add", "x z", "y")],
        [node("GlobalAveragePool", "x", "g"), node("Flatten", "g", "f"), node("Bernoulli", "f", "y")],
    ],
)
def test_random_and_uncounted_outputs_are_refused_all_the_same(nodes: list[object]) -> None:
    with pytest.raises(UnsupportedModel) as refused:
        open_onnx(file_of(nodes, {"w": OWN["w"]}), in_runtime=True)
    assert not isinstance(refused.value, UnreadNode)


@pytest.fixture(scope="module")
def opened() -> OpenedOnnx:
    found = open_onnx(with_a_loop(), in_runtime=True)
    found.network.images = ImageInput()
    return found


def sweep_of(opened: OpenedOnnx, spec: SensitivitySpec) -> Sweep:
    images = TensorImages(torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(2)))
    return Sweep.open(copy.deepcopy(opened.network), images, spec, task=task_named("classification"))


def test_layers_on_both_sides_are_measured_as_the_runtime_measures_the_edited_file(opened: OpenedOnnx) -> None:
    sweep = sweep_of(opened, SensitivitySpec(compression=SparsityConfig(), levels=(0.5,), metric="kl"))
    found = {each.layer: each.changes for each in sweep.measure()}
    assert set(found) == {"c", "d"}
    images = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    for layer in ("c", "d"):
        changed = copy.deepcopy(opened.network)
        weight = changed.get_submodule(layer).weight
        with torch.no_grad():
            weight.view(-1)[weight.abs().flatten().argsort(stable=True)[: weight.numel() // 2]] = 0
        edited = with_weights(opened, changed)
        before, after = (torch.from_numpy(run(each, images)).log_softmax(1) for each in (opened.content, edited))
        divergence = float((before.exp() * (before - after)).sum(1).mean())
        measured = next(each for each in found[layer] if each.metric == "kl")
        assert measured.delta == pytest.approx(divergence, rel=1e-3, abs=1e-7)


def test_there_are_no_estimates_and_that_is_said(opened: OpenedOnnx) -> None:
    sweep = sweep_of(opened, SensitivitySpec(compression=SparsityConfig(), levels=(0.5,), metric="kl"))
    from senseapp.measure.quick.scan import quick_scan

    assert list(quick_scan(sweep)) == []
    assert any("“loop” (Loop) and has no gradients" in note for note in sweep.notes)
    with pytest.raises(InvalidSpec, match="no quick estimates"):
        sweep_of(opened, SensitivitySpec(compression=SparsityConfig(), levels=(0.5,), metric="kl", mode="quick"))
    with pytest.raises(InvalidSpec, match="Channels are not removed"):
        sweep_of(opened, SensitivitySpec(compression=PruningConfig(), levels=(0.5,), metric="kl"))
    outputs = opened.network(torch.rand(1, 3, 8, 8, requires_grad=True))
    with pytest.raises(UnsupportedModel, match="has no gradient of it"):
        outputs.sum().backward()


def test_the_report_offers_it_and_the_settings_say_it(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(with_offsets())
    spec = ModelSpec(library="onnx", checkpoint=str(path), task="classification")
    report = examine_onnx(spec)
    assert report.unread.startswith("Node “i” (DeformConv) is not supported")
    assert report.in_runtime == ("“i” (DeformConv)",)
    chosen = examine_onnx(report.spec)
    assert report.spec.in_runtime
    assert chosen.unread == ""
    assert set(abilities_of(open_onnx(with_offsets(), in_runtime=True).network).missing) <= set(chosen.notes)
    path.write_bytes(with_a_loop())
    assert examine_onnx(replace(spec, task="segmentation")).barrier == "“loop” (Loop)"
    assert examine_onnx(report.spec).barrier == ""
    with pytest.raises(InvalidSpec, match="onnxruntime compute nodes is of an ONNX file"):
        ModelSpec(library="timm", name="resnet18", in_runtime=True)


def test_a_file_whose_layers_are_all_left_to_the_runtime_says_so(tmp_path: Path) -> None:
    nodes = [
        node("DynamicQuantizeLinear", "x", "q s z"),
        node("ConvInteger", "q k z", "j"),
        node("Cast", "j", "f", to=TensorProto.FLOAT),
        node("GlobalAveragePool", "f", "g"),
        node("Flatten", "g", "y"),
    ]
    path = tmp_path / "dynamic.onnx"
    path.write_bytes(file_of(nodes, {"k": np.ones((8, 3, 3, 3), np.int8)}))
    spec = ModelSpec(library="onnx", checkpoint=str(path), in_runtime=True, task="classification")
    with pytest.raises(UnsupportedModel, match=r"All layers of the file are among .*“q” .* and 1 other node, so there"):
        load_onnx(spec, lambda _: None)


def test_a_node_that_the_runtime_refuses_too_is_refused_with_the_first_reason(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(file_of([node("ConvInteger", "x w", "y")], {"w": OWN["w"]}))  # takes no float
    with pytest.raises(UnreadNode, match="Bring the float file that this one was quantized from"):
        examine_onnx(ModelSpec(library="onnx", checkpoint=str(path), task="classification"))
