"""Files in int8 on the simulator of Qualcomm's HTP; only where the extra ``qnn`` is installed."""

from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

from senseapp.core.errors import InvalidInput
from senseapp.runtimes.base import runtime_named
from senseapp.runtimes.onnxruntime.runtime import ForeignFile

pytest.importorskip("onnxruntime_qnn", reason="the extra qnn is not installed")
pytestmark = pytest.mark.slow

from senseapp.runtimes.qnn.simulator import simulated  # noqa: E402


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def content(images: torch.Tensor) -> bytes:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()]
    network = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()
    runtime = runtime_named("onnxruntime")
    return runtime.quantizer(runtime.exporter(network, images)(network), [images]).write()


def test_the_simulator_answers_nearly_as_onnxruntime_without_integer_kernels(
    content: bytes, images: torch.Tensor, tmp_path: Path
) -> None:
    compiled = tmp_path / "compiled.onnx"
    opened = simulated(content, context=compiled)
    found = torch.cat([opened.run(each[None]) for each in images])  # type: ignore[arg-type]
    wanted = ForeignFile(content, fused=False).run(images)
    assert isinstance(wanted, torch.Tensor)
    assert float((found - wanted).norm() / wanted.norm()) < 0.05
    assert "operators run on the HTP" in opened.about
    assert "EPContext" in {each.op_type for each in onnx.load(compiled).graph.node}


@pytest.mark.parametrize("damage", [b"", b"no file"])
def test_what_is_no_file_is_refused(damage: bytes) -> None:
    with pytest.raises(InvalidInput):
        simulated(damage)
