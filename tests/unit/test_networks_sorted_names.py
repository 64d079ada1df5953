"""Files that are sorted by name: one order of equal shapes is taken, of several none."""

from __future__ import annotations

import itertools
import random

import pytest
import timm
import torch
from safetensors.torch import save_file

from senseapp.core.errors import InvalidCheckpoint
from senseapp.networks.checkpoints.by_order import weights_by_layer
from senseapp.networks.checkpoints.checkpoint import read_checkpoint
from senseapp.networks.checkpoints.sorted_names import arrangements, exchangeable
from senseapp.networks.sources.load import load_model
from senseapp.records.spec import ModelSpec
from tests.cases import first_of

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


def renamed(state, *pairs):
    """Return the weights with parts of their names replaced, in the order of their new names."""
    found = {}
    for name, tensor in state.items():
        parts = name.split(".")
        found[".".join(dict(pairs).get(part, part) for part in parts)] = tensor.contiguous()
    return found


def saved(tmp_path, tensors):
    save_file(tensors, tmp_path / "a.safetensors")
    return ModelSpec(library="auto", checkpoint=str(tmp_path / "a.safetensors"))


STAGES = (("layer1", "early"), ("layer2", "middle"), ("layer3", "late"), ("layer4", "deep"))


@pytest.mark.parametrize(
    "pairs",
    [
        STAGES,
        (*STAGES, ("fc", "answer"), ("bn1", "n1"), ("bn2", "n2")),
        (("conv1", "conv_a"), ("conv2", "conv_b")),
        (("conv1", "second"), ("conv2", "first")),
    ],
    ids=["stages", "stages, norms and classifier", "letters that count", "told apart in one block, so in all"],
)
def test_words_in_place_of_numbers_are_told_apart_by_their_shapes(tmp_path, network, pairs):
    loaded = load_model(saved(tmp_path, renamed(network.state_dict(), *pairs)))
    assert loaded.title == f"timm/{MODEL}"
    assert "This is a guess" in loaded.notes[0]
    images = torch.rand(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(loaded.module(images), network(images))


@pytest.mark.parametrize(
    "pairs", [(("conv1", "Conv1"), ("layer1", "Layer1")), (("layer1", "early"), ("layer2", "late"))]
)
def test_of_several_orders_the_one_with_more_of_the_architectures_names_is_taken(tmp_path, pairs):
    """In the first block of this network, the shortcut and the last convolution have equal shapes."""
    network = random_network("test_resnet")
    loaded = load_model(saved(tmp_path, renamed(network.state_dict(), *pairs)))
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(loaded.module.state_dict()[name], tensor)


def test_an_architecture_chosen_by_name_takes_them_too(tmp_path, network):
    spec = saved(tmp_path, renamed(network.state_dict(), *STAGES))
    loaded = load_model(ModelSpec(library="timm", name=MODEL, checkpoint=spec.checkpoint))
    torch.testing.assert_close(loaded.module.fc.weight, network.fc.weight)


WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
EXCHANGED = {
    "norms": (MODEL, (("bn1", "front"), ("bn2", "tail"))),
    "blocks": ("vit_tiny_patch16_224", tuple((str(number), word) for number, word in enumerate(WORDS))),
}


@pytest.mark.parametrize("name", EXCHANGED)
def test_equal_shapes_of_which_nothing_says_the_order_are_refused(tmp_path, name):
    architecture, pairs = EXCHANGED[name]
    spec = saved(tmp_path, renamed(random_network(architecture).state_dict(), *pairs))
    with pytest.raises(InvalidCheckpoint, match="have equal shapes, and nothing says which comes first"):
        load_model(spec)
    with pytest.raises(InvalidCheckpoint, match=f"the shapes of timm/{architecture} under other names"):
        load_model(ModelSpec(library="timm", name=architecture, checkpoint=spec.checkpoint))


def test_a_file_that_keeps_its_order_needs_no_names(tmp_path, network):
    """torch.save does; so does a writer of safetensors that does not sort."""
    tensors = renamed(network.state_dict(), ("conv1", "z"), ("bn1", "y"), ("layer2", "x"), ("conv2", "w"))
    torch.save(tensors, tmp_path / "a.pth")
    loaded = load_model(ModelSpec(library="auto", checkpoint=str(tmp_path / "a.pth")))
    torch.testing.assert_close(loaded.module.layer2[0].conv2.weight, network.layer2[0].conv2.weight)
    assert not read_checkpoint(tmp_path / "a.pth").sorted_by_name
    assert read_checkpoint(saved(tmp_path, tensors).checkpoint).sorted_by_name


def parts_below(order):
    """Return what follows each prefix, in order, and whether it stands together."""
    below, together = {"": list(dict.fromkeys(name.split(".")[0] for name in order))}, True
    for prefix in {name.split(".")[0] for name in order if "." in name}:
        places = [place for place, name in enumerate(order) if name.startswith(f"{prefix}.")]
        together &= places == list(range(places[0], places[-1] + 1))
        below[prefix] = [order[place].split(".")[1] for place in places]
    return below, together


def is_told_by_names(order):
    below, together = parts_below(order)
    pairs = [pair for parts in below.values() for pair in itertools.combinations(parts, 2)]
    return together and not any(a[0] == b[0] and len(a) > 1 < len(b) and int(a[1:]) > int(b[1:]) for a, b in pairs)


def is_consistent(order):
    pairs = {pair for parts in parts_below(order)[0].values() for pair in itertools.combinations(parts, 2)}
    return not any((b, a) in pairs for a, b in pairs)


@pytest.mark.parametrize("seed", first_of(range(60), 15))
def test_orders_are_those_of_all_permutations(seed):
    chance = random.Random(seed)
    drawn = [f"{chance.choice(('a1.', 'a2.', 'x.', ''))}{chance.choice(('c1', 'c2', 'c10', 'n'))}" for _ in range(7)]
    names = sorted(set(drawn))
    shapes = {name: (chance.choice((2, 3)), 4) for name in names}
    told = [order for order in itertools.permutations(names) if is_told_by_names(order)]
    wanted = [shapes[name] for name in chance.choice(told)]
    possible = {order for order in told if [shapes[name] for name in order] == wanted}
    possible = {order for order in possible if is_consistent(order)} or possible
    found = arrangements(
        {name: (name,) for name in names}, shapes, {f"w{at}": shape for at, shape in enumerate(wanted)}
    )
    assert set(found) <= possible
    assert len(found) == min(2, len(possible))


def test_query_key_and_value_are_no_numbers():
    shapes = {f"attn.{part}.weight": (8, 8) for part in "qkv"}
    assert exchangeable(weights_by_layer(shapes), shapes) is not None
    assert len(arrangements(weights_by_layer(shapes), shapes, {f"w{at}": (8, 8) for at in range(3)})) == 2


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
