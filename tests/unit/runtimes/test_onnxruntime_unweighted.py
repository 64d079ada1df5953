"""What has no weights stays in float in networks with layer norms, where int8 harms it and saves no time."""

from functools import cache

import onnx
import pytest
import torch
from torch import Tensor, nn

from senseapp.reconstruct.write import onnx_model
from senseapp.runtimes.onnxruntime.operations import OPERATIONS
from senseapp.runtimes.quantizers import Fitting
from tests.cases import first_of

WIDTH, LOUD = 16, 60.0
IMAGES = torch.randn(24, 3, 4, 4, generator=torch.Generator().manual_seed(0))


class Stream(nn.Module):
    """Blocks that add to one tensor, of which one channel is much larger than all others, as in trained ViTs."""

    def __init__(self, norm: type[nn.Module]) -> None:
        """Without layer norms it has ReLU in place of GELU."""
        super().__init__()
        self.first = nn.Linear(48, WIDTH)
        self.norms = nn.ModuleList(norm(WIDTH) for _ in range(3))
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.last = nn.Linear(WIDTH, 4)
        self.activation = nn.functional.gelu if norm is nn.LayerNorm else nn.functional.relu
        with torch.no_grad():
            self.first.bias[0] = LOUD

    def forward(self, images: Tensor) -> Tensor:
        stream = self.first(images.flatten(1))
        for norm, block in zip(self.norms, self.blocks, strict=True):
            stream = stream + self.activation(block(norm(stream)))
        return self.last(stream * torch.tensor([0.0] + [1.0] * (WIDTH - 1)))


@cache
def exported(norm: type[nn.Module]) -> bytes:
    torch.manual_seed(0)
    return onnx_model(Stream(norm).eval(), IMAGES[:2])


def rounded(content: bytes) -> set[str]:
    """Return the kinds of the nodes whose outputs are rounded."""
    graph = onnx.load_from_string(content).graph
    makers = {name: node.op_type for node in graph.node for name in node.output}
    return {makers.get(node.input[0], "") for node in graph.node if node.op_type == "QuantizeLinear"}


@pytest.mark.parametrize("norm", first_of([nn.LayerNorm, nn.Identity]))
def test_what_has_no_weights_stays_in_float(norm: type[nn.Module]) -> None:
    content = exported(norm)
    quantizer = OPERATIONS.fitted_quantizer(content, Fitting(batches=[IMAGES[:12]]))
    file = quantizer.write()
    stays = norm is nn.LayerNorm
    assert ("Add" not in rounded(file)) == stays
    products = {f"node_linear_{place}" for place in range(1, 5)}
    assert set(quantizer.nodes(file)) >= products
    assert any("Only convolutions and matrix products" in note for note in quantizer.notes) == stays
    kinds = {node.name: node.op_type for node in onnx.load_from_string(content).graph.node}
    assert ({kinds[name] for name in quantizer.nodes(file)} <= {"Gemm", "MatMul"}) == stays
