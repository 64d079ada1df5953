"""ONNX files of any program in onnxruntime: what they declare, how they are fed, and what stops them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from senseapp.core.errors import InvalidCheckpoint, InvalidInput, InvalidSpec, UnsupportedModel
from senseapp.networks.onnx.upload import with_weights_beside
from senseapp.runtimes import open_file
from senseapp.runtimes.onnxruntime.runtime import ForeignFile
from senseapp.runtimes.tensor_divergence import relative_difference, tensor_divergence
from tests.onnx_graphs import file_of, node, weights

HEAD = [node("Conv", "x w", "c", pads=[1, 1, 1, 1]), node("GlobalAveragePool", "c", "p"), node("Flatten", "p", "y")]
WEIGHTS = {"w": weights(4, 3, 3, 3)}


def images(count: int) -> torch.Tensor:
    return torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(count))


def test_the_last_call_of_a_fixed_batch_is_filled_up() -> None:
    free = ForeignFile(file_of(HEAD, WEIGHTS, shape=("N", 3, 8, 8)))
    fixed = ForeignFile(file_of(HEAD, WEIGHTS, shape=(4, 3, 8, 8)))
    assert (free.fixed_batch, fixed.fixed_batch) == (None, 4)
    few = images(3)
    assert torch.allclose(fixed.run(few), free.run(few), atol=1e-6)  # type: ignore[arg-type]
    assert fixed.facts.takes == "“x”, float32 (4, 3, 8, 8)"


def test_images_with_channels_last_are_turned() -> None:
    turned = [node("Transpose", "x", "t", perm=[0, 3, 1, 2]), node("Conv", "t w", "c", pads=[1, 1, 1, 1]), *HEAD[1:]]
    last = ForeignFile(file_of(turned, WEIGHTS, shape=("N", 8, 8, 3)))
    assert last.facts.channels_last
    assert last.facts.image_shape == (3, 8, 8)
    first = ForeignFile(file_of(HEAD, WEIGHTS, shape=("N", 3, 8, 8)))
    assert torch.allclose(last.run(images(2)), first.run(images(2)), atol=1e-6)  # type: ignore[arg-type]


def test_what_takes_no_images_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match="“x” is float32 of 2 axes"):
        ForeignFile(file_of([node("Relu", "x", "y")], {}, shape=("N", 5)))
    two = onnx.load_from_string(file_of([node("Mul", "x f", "y")], {}, shape=(1, 3, 8, 8)))
    two.graph.input.append(helper.make_tensor_value_info("f", TensorProto.FLOAT, [1]))
    with pytest.raises(UnsupportedModel, match="2 inputs"):
        ForeignFile(two.SerializeToString())
    with pytest.raises(InvalidInput, match="cannot open this file"):
        ForeignFile(file_of([node("NoSuchOperator", "x", "y")], {}))


def test_an_output_that_lists_no_images_is_refused() -> None:
    opened = ForeignFile(file_of([node("ReduceSum", "x", "y", keepdims=0)], {}, shape=("N", 3, 8, 8)))
    with pytest.raises(UnsupportedModel, match="does not list them one by one"):
        opened.run(images(2))


def looping(trips: str, condition: str, *, still: str = "going", inner: Sequence[onnx.NodeProto] = ()) -> bytes:
    """A file with a loop over Sin; its passes and its condition are values named so."""
    body = helper.make_graph(
        [*inner, helper.make_node("Identity", [still], ["still"]), helper.make_node("Sin", ["value"], ["next"])],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("value", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, None),
        ],
    )
    around = [
        node("ReduceMax", "x", "largest", keepdims=0),
        node("Greater", "largest half", "bright"),
        helper.make_node("Loop", [trips, condition, "x"], ["y"], name="endless", body=body),
    ]
    numbers = {"yes": True, "no": False, "half": np.float32(0.5), "million": 10**6, "huge": 10**15, "few": 3}
    return file_of(around, {name: np.asarray(value) for name, value in numbers.items()}, shape=(1, 3, 8, 8))


ALWAYS = helper.make_node("Constant", [], ["true"], value=numpy_helper.from_array(np.asarray(True)))


NESTED = helper.make_node("Loop", ["million", "yes", "value"], ["w"], body=helper.make_graph(
    [helper.make_node("Identity", ["c"], ["d"]), *(helper.make_node("Sin", ["v"], [f"v{at}"]) for at in range(20))],
    "inner", *([onnx.ValueInfoProto(name=name) for name in names] for names in ("icv", ("d", "v0"))),
))  # fmt: skip


@pytest.mark.parametrize(
    ("content", "runs"),
    [
        (looping("", "yes"), "never ends"),
        (looping("", ""), "never ends"),
        (looping("", "yes", still="true", inner=[ALWAYS]), "never ends"),
        (looping("huge", "yes"), r"runs 2\.0e\+15 nodes"),
        (looping("huge", "yes", still="yes"), r"runs 2\.0e\+15 nodes"),
        (looping("", "bright", inner=[NESTED]), r"runs 2\.1e\+07 nodes"),
    ],
)
def test_a_loop_of_too_many_passes_is_refused_before_anything_runs(content: bytes, runs: str) -> None:
    assert len(content) < 1500
    with pytest.raises(InvalidCheckpoint, match=f"“endless” .Loop. {runs}"):
        ForeignFile(content)


@pytest.mark.parametrize("content", [looping("few", "yes"), looping("huge", "no"), looping("huge", "bright")])
def test_a_loop_that_ends_is_run(content: bytes) -> None:
    ForeignFile(content).run(torch.zeros(1, 3, 8, 8))


def test_a_loop_that_does_not_end_for_one_image_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_file, "_SMALL_SECONDS", 0.3)
    opened = ForeignFile(looping("", "bright", still="bright"))
    for _ in range(2):
        opened.run(torch.zeros(1, 3, 8, 8))
        with pytest.raises(InvalidSpec, match="for one call, so it was stopped"):
            opened.run(torch.ones(1, 3, 8, 8))


def test_weights_are_read_beside_the_file_and_nowhere_else(tmp_path: Path) -> None:
    model = onnx.load_from_string(file_of(HEAD, WEIGHTS))
    path = tmp_path / "net.onnx"
    onnx.save(model, path, save_as_external_data=True, size_threshold=0, location="net.data")
    assert torch.allclose(ForeignFile(with_weights_beside(path)).run(images(1)), ForeignFile(  # type: ignore[arg-type]
        file_of(HEAD, WEIGHTS)).run(images(1)))  # fmt: skip
    moved = onnx.load(path, load_external_data=False)
    for entry in moved.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = "../net.data"
    path.write_bytes(moved.SerializeToString())
    with pytest.raises(InvalidCheckpoint, match="which did not come along"):
        with_weights_beside(path)
    (tmp_path / "net.data").unlink()
    with pytest.raises(InvalidCheckpoint, match="another file"):
        ForeignFile(path.read_bytes())


# ---- where files part


def parted(reference: bytes, candidate: bytes) -> dict[str, float]:
    found = tensor_divergence(reference, candidate, (images(2), images(2)), progress=lambda _: None)
    assert found is not None
    return {each.name: each.difference for each in found.tensors}


def network(*, norm: str, damaged: float = 1.0) -> bytes:
    """A convolution with a norm, a ReLU and another one; the norm is a node, or folded into the convolution."""
    first, second = weights(4, 3, 3, 3), weights(4, 4, 3, 3, seed=1) * damaged
    scale = np.array([2.0, 0.5, -1.0, 3.0], np.float32)
    constants = {"w2": second.astype(np.float32)}
    if norm == "node":
        rest = {"s": scale, "b": np.zeros(4, np.float32), "m": np.zeros(4, np.float32), "v": np.ones(4, np.float32)}
        nodes = [node("Conv", "x w", "c"), node("BatchNormalization", "c s b m v", "n", epsilon=0.0)]
        constants |= {"w": first, **rest}
    else:
        nodes, constants = [node("Conv", "x w", norm)], constants | {"w": first * scale[:, None, None, None]}
    last = nodes[-1].output[0]
    return file_of([*nodes, node("Relu", last, "r"), node("Conv", "r w2", "y")], constants, shape=("N", 3, 8, 8))


@pytest.mark.parametrize("name", ["c", "n"])
def test_a_norm_that_is_folded_is_compared_by_its_result(name: str) -> None:
    for pair in ((network(norm="node"), network(norm=name)), (network(norm=name), network(norm="node"))):
        assert all(difference < 1e-5 for difference in parted(*pair).values())
    found = parted(network(norm=name), network(norm="node", damaged=-1.0))
    assert found["y"] == pytest.approx(2.0, rel=1e-4)
    assert all(difference < 1e-5 for each, difference in found.items() if each != "y")


def test_a_difference_is_relative_and_unknown_numbers_are_no_difference() -> None:
    ones = np.ones(4)
    assert relative_difference(ones, ones) == 0
    assert relative_difference(ones, 2 * ones) == 1
    assert relative_difference(ones, ones * np.nan) == np.inf
    assert relative_difference(0 * ones, 0 * ones) == 0
    assert relative_difference(0 * ones, ones) == np.inf


def test_integers_are_compared_as_the_numbers_that_they_stand_for() -> None:
    scale, zero = np.float32(0.05), np.uint8(128)
    rounded = [
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        node("Conv", "d w", "c", pads=[1, 1, 1, 1]),
        *HEAD[1:],
    ]
    content = file_of(rounded, WEIGHTS | {"s": np.array(scale), "z": np.array(zero)}, shape=("N", 3, 8, 8))
    assert 0 < max(parted(file_of(HEAD, WEIGHTS, shape=("N", 3, 8, 8)), content).values()) < 0.1
