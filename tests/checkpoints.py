"""A small network to be read back from checkpoints of every kind: the same answers mean the right accuracy."""

import os

import pytest
import timm
import torch

from senseapp.networks.sources.load import load_model
from senseapp.records.spec import ModelSpec

MODEL = "test_resnet"


class Canary:
    """Touches a file when somebody unpickles it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    network = timm.create_model(MODEL, num_classes=5)
    for name, tensor in network.state_dict().items():
        if name.endswith("running_var"):
            tensor.copy_(torch.rand_like(tensor) + 0.5)
    return network.eval()


def assert_same(path, network, *, network_name=""):
    loaded = load_model(ModelSpec(library="auto", checkpoint=str(path), network=network_name))
    assert loaded.title == f"timm/{MODEL}"
    assert loaded.num_classes == 5
    images = torch.rand(4, 3, 48, 48, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        torch.testing.assert_close(loaded.module(images), network(images), rtol=1e-4, atol=1e-3)
    return loaded
