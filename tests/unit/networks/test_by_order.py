"""Checkpoints under other names: matched by the order and shapes of their weights, and never in silence."""

import pytest
import timm
import torch

from senseapp.core.errors import InvalidCheckpoint
from senseapp.networks.checkpoints.architectures import load_index
from senseapp.networks.checkpoints.fitting import look_alikes
from senseapp.networks.checkpoints.recognise import fit_by_order, ordered_weights
from senseapp.networks.sources.load import load_model
from senseapp.records.spec import ModelSpec
from tests.cases import first_of

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


def test_other_orders_and_shapes_do_not_fit(network):
    state = renamed(network.state_dict(), counters=False)
    names = list(state)

    def fits(tensors):
        orders = ordered_weights(tensors)
        return any(fit_by_order(item, orders) is not None for item in load_index().architectures)

    assert fits(state)
    assert not fits({f"p{place}": state[name] for place, name in enumerate(reversed(names))})
    assert not fits({name: state[name] for name in names[:-1]})
    assert not fits(state | {"extra.bias": torch.zeros(3)})
    assert not fits(state | {"blob3.amax": torch.zeros(1)})
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


def names_in_order(tmp_path, file_name):
    state = timm.create_model("tf_efficientnet_lite0", num_classes=3).state_dict()
    return [
        item.name for item in look_alikes(ModelSpec(library="auto", checkpoint=save(tmp_path / file_name, state)))[0]
    ]


@pytest.mark.parametrize(
    ("file_name", "first"),
    first_of(
        [
            ("tf_efficientnet_lite0.pth", "tf_efficientnet_lite0"),
            ("weights.pth", "efficientnet_lite0"),
            ("TF-EfficientNet-Lite0_best.pth", "tf_efficientnet_lite0"),
            ("efficientnet-lite0-57934424.pth", "efficientnet_lite0"),
        ],
        2,
    ),
)
def test_the_files_name_says_which_look_alike_comes_first(tmp_path, file_name, first):
    found = names_in_order(tmp_path, file_name)
    assert found[0] == first
    assert set(found) == {"efficientnet_lite0", "tf_efficientnet_lite0"}
