"""Checkpoints under other names: matched by the order and shapes of their weights, and never in silence.

In files that are sorted by name, numbers in names say the order, words do not.
"""

from __future__ import annotations

import pytest
import timm
import torch
from safetensors.torch import save_file

from senseapp.core.errors import InvalidCheckpoint
from senseapp.networks.checkpoints.by_order import exchangeable, ordered_weights, weights_by_layer
from senseapp.networks.checkpoints.checkpoint import read_checkpoint
from senseapp.networks.checkpoints.fingerprint import load_fingerprints
from senseapp.networks.checkpoints.fitting import look_alikes
from senseapp.networks.checkpoints.recognise import fit_by_order
from senseapp.networks.sources.load import load_model
from senseapp.records.spec import ModelSpec

MODEL = "resnet10t"


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    network = timm.create_model(MODEL, num_classes=7)
    for name, tensor in network.state_dict().items():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand_like(tensor) + (0.1 if name.endswith("running_var") else -0.5))
    return network.eval()


def renamed(state, *, suffixes=None, counters=True, separator="."):
    """Return the weights as somebody else's code might name them, layer by layer, in the order of ``suffixes``."""
    layers = {}
    for name, tensor in state.items():
        layer, _, suffix = name.rpartition(".")
        if counters or suffix != "num_batches_tracked":
            layers.setdefault(layer, {})[suffix] = tensor
    result = {}
    for number, tensors in enumerate(layers.values()):
        order = sorted(tensors, key=suffixes.index) if suffixes else list(tensors)
        for suffix in order:
            result[f"blob{number}{separator}{suffix}"] = tensors[suffix]
    return result


def save(path, tensors):
    torch.save(tensors, path)
    return str(path)


def assert_same(loaded, network):
    images = torch.rand(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(loaded.module(images), network(images))


@pytest.mark.parametrize(
    ("suffixes", "counters", "separator"),
    [
        (None, False, "/"),
        (("num_batches_tracked", "running_var", "running_mean", "bias", "weight"), True, "."),
        (("running_mean", "weight", "running_var", "bias", "num_batches_tracked"), True, "_"),
    ],
)
def test_weights_of_other_names_give_the_same_answers(tmp_path, network, suffixes, counters, separator):
    state = renamed(network.state_dict(), suffixes=suffixes, counters=counters, separator=separator)
    loaded = load_model(ModelSpec(library="auto", checkpoint=save(tmp_path / "net.pth", state)))
    assert loaded.title == f"timm/{MODEL}"
    assert loaded.num_classes == 7
    assert "order and shapes fit timm/resnet10t. This is a guess" in loaded.notes[0]
    assert_same(loaded, network)


def test_buffers_behind_all_weights_are_put_back_to_their_layers(tmp_path, network):
    state = renamed(network.state_dict(), counters=False)
    buffers = {name: state.pop(name) for name in list(state) if "running" in name}
    loaded = load_model(ModelSpec(library="auto", checkpoint=save(tmp_path / "net.pth", state | buffers)))
    assert_same(loaded, network)


def test_an_architecture_chosen_by_name_takes_them_too(tmp_path, network):
    path = save(tmp_path / "net.pth", renamed(network.state_dict()))
    loaded = load_model(ModelSpec(library="timm", name=MODEL, checkpoint=path))
    assert "This is a guess" in loaded.notes[0]
    assert_same(loaded, network)
    with pytest.raises(InvalidCheckpoint, match="does not fit timm/resnet18"):
        load_model(ModelSpec(library="timm", name="resnet18", checkpoint=path))


def test_names_go_before_order(tmp_path, network):
    loaded = load_model(ModelSpec(library="auto", checkpoint=save(tmp_path / "net.pth", network.state_dict())))
    assert "every name and shape fits" in loaded.notes[0]


def test_other_orders_and_shapes_do_not_fit(network):
    state = renamed(network.state_dict(), counters=False)
    names = list(state)

    def fits(tensors):
        orders = ordered_weights(tensors)
        return any(fit_by_order(item, orders) is not None for item in load_fingerprints())

    assert fits(state)
    assert not fits({f"p{place}": state[name] for place, name in enumerate(reversed(names))})
    assert not fits({name: state[name] for name in names[:-1]})
    assert not fits(state | {"extra.bias": torch.zeros(3)})
    assert not fits(state | {"extra": torch.zeros(3, 3)})
    assert not fits(state | {names[0]: torch.zeros(1, 1)})


def test_a_number_that_cannot_be_a_variance_refutes_the_order(tmp_path, network):
    state = renamed(network.state_dict(), counters=False)
    numbered = {f"p{index}": tensor for index, tensor in enumerate(state.values())}  # roles are not to be read
    assert_same(load_model(ModelSpec(library="auto", checkpoint=save(tmp_path / "a.pth", numbered))), network)
    swapped = dict(network.state_dict())
    swapped["bn1.running_var"], swapped["bn1.bias"] = swapped["bn1.bias"], swapped["bn1.running_var"]
    shuffled = {f"p{index}": tensor for index, tensor in enumerate(renamed(swapped, counters=False).values())}
    with pytest.raises(InvalidCheckpoint, match="would be a variance and holds negative numbers"):
        load_model(ModelSpec(library="auto", checkpoint=save(tmp_path / "b.pth", shuffled)))


@pytest.mark.slow
def test_a_hundred_thousand_tensors_are_no_architecture():
    tensors = {f"layer{index}.weight": torch.zeros(1) for index in range(100_000)}
    assert ordered_weights(tensors) == ()


def names_in_order(tmp_path, file_name):
    state = timm.create_model("tf_efficientnet_lite0", num_classes=3).state_dict()
    return [
        item.name for item in look_alikes(ModelSpec(library="auto", checkpoint=save(tmp_path / file_name, state)))[0]
    ]


@pytest.mark.parametrize(
    ("file_name", "first"),
    [
        ("tf_efficientnet_lite0.pth", "tf_efficientnet_lite0"),
        ("TF-EfficientNet-Lite0_best.pth", "tf_efficientnet_lite0"),
        ("efficientnet-lite0-57934424.pth", "efficientnet_lite0"),
        ("weights.pth", "efficientnet_lite0"),
    ],
)
def test_the_files_name_says_which_look_alike_comes_first(tmp_path, file_name, first):
    found = names_in_order(tmp_path, file_name)
    assert found[0] == first
    assert set(found) == {"efficientnet_lite0", "tf_efficientnet_lite0"}


# ---- files that are sorted by name


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


def test_numbers_say_the_order(tmp_path, network):
    loaded = load_model(saved(tmp_path, numbered(network.state_dict())))
    assert loaded.title == f"timm/{MODEL}"
    assert "This is a guess" in loaded.notes[0]
    assert_same(loaded, network)


@pytest.mark.parametrize("named", [False, True])
def test_equal_shapes_of_which_nothing_says_the_order_are_refused(tmp_path, network, named):
    spec = saved(tmp_path, numbered(network.state_dict(), words=("front", "tail")))
    spec = ModelSpec(library="timm", name=MODEL, checkpoint=spec.checkpoint) if named else spec
    with pytest.raises(InvalidCheckpoint, match=f"of timm/{MODEL} under other names.* have equal shapes, and no"):
        load_model(spec)


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
