import io
import json

import pytest
import torch
from torch import nn

from senseapp.core.errors import InvalidSchedule, UnsupportedModel
from senseapp.formats.model_explorer import exported_graph, overlay_of


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.blocks = nn.Sequential(nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)), nn.ReLU())
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


VALUES = {"stem": 0.5, "blocks.0.0": 0.1, "fc": 0.0}


@pytest.fixture(scope="module")
def exported():
    torch.manual_seed(0)
    net = Net().train()
    nodes, graph = exported_graph(net, torch.zeros(1, 3, 8, 8))
    return net, json.loads(overlay_of(VALUES, nodes, title="kl at 50 %")), graph


def test_nodes_of_the_shipped_graph_carry_the_values(exported):
    _, overlay, graph = exported
    nodes = {node.name: node for node in torch.export.load(io.BytesIO(graph)).graph.nodes}
    assert set(overlay["results"]) <= set(nodes)
    by_value = {item["value"]: str(nodes[name].target) for name, item in overlay["results"].items()}
    assert sorted(by_value) == sorted(VALUES.values())
    assert "conv2d" in by_value[0.5]
    assert "conv2d" in by_value[0.1]
    assert "linear" in by_value[0.0]


def test_the_overlay_has_the_keys_that_model_explorer_reads(exported):
    _, overlay, _ = exported
    assert set(overlay) == {"name", "results", "gradient"}
    assert overlay["name"] == "kl at 50 %"
    assert {stop["stop"] for stop in overlay["gradient"]} >= {0, 1}


def test_the_graph_computes_what_the_network_does_and_the_network_is_left_alone(exported):
    net, _, graph = exported
    assert net.training
    image = torch.randn(1, 3, 8, 8)
    torch.testing.assert_close(torch.export.load(io.BytesIO(graph)).module()(image), net.eval()(image))
    net.train()


def test_a_layer_without_a_node_is_named():
    with pytest.raises(InvalidSchedule, match="ghost has no node"):
        overlay_of({"ghost": 1.0}, {}, title="")


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_a_network_that_cannot_be_traced_is_one_sentence():
    with pytest.raises(UnsupportedModel, match="cannot be exported") as caught:
        exported_graph(Branching(), torch.zeros(1, 3))
    assert "\n" not in str(caught.value)
