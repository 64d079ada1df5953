"""Files that are sorted by name: numbers in names say the order, words do not."""

from __future__ import annotations

import pytest
import timm
import torch
from safetensors.torch import save_file

from senseapp.core.errors import InvalidCheckpoint
from senseapp.networks.checkpoints.by_order import exchangeable, weights_by_layer
from senseapp.networks.checkpoints.checkpoint import read_checkpoint
from senseapp.networks.sources.load import load_model
from senseapp.records.spec import ModelSpec

MODEL = "resnet10t"


def random_network(name):
    torch.manual_seed(0)
    network = timm.create_model(name, num_classes=7)
    for key, tensor in network.state_dict().items():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand_like(tensor) + (0.1 if key.endswith("running_var") else -0.5))
    return network.eval()


@pytest.fixture(scope="module")
def network():
    return random_network(MODEL)


def numbered(state, words=()):
    """Return the weights with a number for each layer, and ``words`` behind the numbers of the first norms."""
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in state))
    norms = [layer for layer in layers if f"{layer}.running_var" in state and state[f"{layer}.weight"].numel() == 64]
    ends = dict(zip(norms, words, strict=False))
    return {
        f"{layers.index(layer)}{ends.get(layer, '')}.{kind}": tensor.contiguous()
        for name, tensor in state.items()
        for layer, _, kind in (name.rpartition("."),)
    }


def saved(tmp_path, tensors):
    save_file(tensors, tmp_path / "a.safetensors")
    return ModelSpec(library="auto", checkpoint=str(tmp_path / "a.safetensors"))


def spec_of(spec, *, named):
    return ModelSpec(library="timm", name=MODEL, checkpoint=spec.checkpoint) if named else spec


@pytest.mark.parametrize("named", [False, True])
def test_numbers_say_the_order(tmp_path, network, named):
    loaded = load_model(spec_of(saved(tmp_path, numbered(network.state_dict())), named=named))
    assert loaded.title == f"timm/{MODEL}"
    assert "This is a guess" in loaded.notes[0]
    images = torch.rand(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(loaded.module(images), network(images))


@pytest.mark.parametrize("named", [False, True])
def test_equal_shapes_of_which_nothing_says_the_order_are_refused(tmp_path, network, named):
    spec = saved(tmp_path, numbered(network.state_dict(), words=("front", "tail")))
    with pytest.raises(
        InvalidCheckpoint, match=f"shapes of timm/{MODEL} under other names.* have equal shapes, and no"
    ):
        load_model(spec_of(spec, named=named))


def test_words_in_place_of_numbers_are_refused_with_what_keeps_the_order(tmp_path, network):
    state = network.state_dict()
    words = {name.replace("layer1", "early").replace("layer2", "deep"): tensor for name, tensor in state.items()}
    with pytest.raises(InvalidCheckpoint, match=r"torch\.save keeps their order"):
        load_model(saved(tmp_path, words))


def test_a_file_that_keeps_its_order_needs_no_names(tmp_path, network):
    """torch.save does; so does a writer of safetensors that does not sort."""
    words = {"conv1": "z", "bn1": "y", "layer2": "x", "conv2": "w"}
    tensors = {
        ".".join(words.get(part, part) for part in name.split(".")): tensor.contiguous()
        for name, tensor in network.state_dict().items()
    }
    torch.save(tensors, tmp_path / "a.pth")
    loaded = load_model(ModelSpec(library="auto", checkpoint=str(tmp_path / "a.pth")))
    torch.testing.assert_close(loaded.module.layer2[0].conv2.weight, network.layer2[0].conv2.weight)
    assert not read_checkpoint(tmp_path / "a.pth").sorted_by_name
    assert read_checkpoint(saved(tmp_path, tensors).checkpoint).sorted_by_name


def test_query_key_and_value_are_no_numbers():
    shapes = {f"attn.{part}.weight": (8, 8) for part in "qkv"}
    assert exchangeable(weights_by_layer(shapes), shapes) is not None


def test_norms_of_parts_with_other_shapes_are_not_exchangeable():
    shapes = {
        "conv2.weight": (8, 8, 3, 3),
        "bn2.weight": (8,),
        "short_conv.weight": (8, 4, 1, 1),
        "short_bn.weight": (8,),
    }
    assert exchangeable(weights_by_layer(shapes), shapes) is None
    shapes = {"attn_norm.weight": (8,), "mlp_norm.weight": (8,), "attn_qkv.weight": (24, 8), "mlp_fc.weight": (8, 8)}
    assert exchangeable(weights_by_layer(shapes), shapes) is None
    shapes = {"norm_attn.weight": (8,), "norm_mlp.weight": (8,)}
    assert exchangeable(weights_by_layer(shapes), shapes) == ("norm.attn", "norm.mlp")
