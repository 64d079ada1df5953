"""Checkpoints whose weights are all there under other names, in parts, or beside others; and those that lack some."""

import copy

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.ao import quantization
from torch.nn.utils import parametrizations, prune
from torch.nn.utils import spectral_norm as old_spectral_norm
from torch.nn.utils import weight_norm as old_weight_norm

from senseapp.core.errors import InvalidCheckpoint
from senseapp.networks.checkpoints.checkpoint import Checkpoint
from senseapp.networks.checkpoints.parametrizations import plain_weights
from senseapp.networks.checkpoints.stored_networks import find_networks
from senseapp.networks.sources.libraries import build_on_meta
from senseapp.networks.sources.load import load_model
from senseapp.records.spec import ModelSpec
from tests.cases import first_of
from tests.checkpoints import MODEL, assert_same, network

__all__ = ["network"]


def save(weights, path):
    """Write ``weights`` by the suffix of ``path``."""
    if path.suffix == ".safetensors":
        plain = {name: tensor.detach().clone().contiguous() for name, tensor in weights.items()}
        safetensors.torch.save_file(plain, path)
    else:
        torch.save(weights, path)
    return path


def under(prefix, weights):
    return {prefix + name: tensor for name, tensor in weights.items()}


def changed(original, change):
    """Return a copy of ``original`` after ``change``."""
    other = copy.deepcopy(original)
    change(other)
    return other.eval()


def convolutions(module):
    return [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]


def with_thop(weights):
    layers = dict.fromkeys(name.rpartition(".")[0] for name in weights)
    counters = {f"{layer}.{key}": torch.zeros(1).double() for layer in layers for key in ("total_ops", "total_params")}
    return {**weights, **counters, "total_ops": torch.zeros(1), "total_params": torch.zeros(1)}


def with_inner_wrapper(weights):
    parts = (name.partition(".") for name in weights)
    return {f"{first}{dot}_orig_mod.{rest}": tensor for (first, dot, rest), tensor in zip(parts, weights.values())}  # noqa: B905


def with_head_outside(weights):
    return {
        (f"classifier{name[2:]}" if name.startswith("fc.") else f"backbone.{name}"): weights[name] for name in weights
    }


NAMES = {
    "module.": lambda w: under("module.", w),
    "a.b.c.d.": lambda w: under("a.b.c.d.", w),
    "model._orig_mod.": lambda w: under("model._orig_mod.", w),
    "inner _orig_mod.": with_inner_wrapper,
    "thop": with_thop,
    "thop below a prefix": lambda w: under("net.", with_thop(w)),
    "criterion and metrics": lambda w: {**under("model.", w), "loss.weight": torch.ones(5), "acc.total": torch.ones(1)},
    "head outside the backbone": with_head_outside,
    "head of another name and counters": lambda w: with_thop(
        {name.replace("fc.", "head.1."): tensor for name, tensor in w.items()}
    ),
    "a projector": lambda w: {**w, "projector.0.weight": torch.ones(7, 9), "projector.0.bias": torch.ones(7)},
    "queue of a momentum encoder": lambda w: {**under("encoder_q.", w), "queue": torch.ones(16, 64)},
    "averaged weights of torch": lambda w: {**under("module.", w), "n_averaged": torch.tensor(3)},
}


@pytest.mark.parametrize("suffix", first_of([".pth", ".safetensors"]))
@pytest.mark.parametrize("name", NAMES)
def test_weights_under_other_names_are_found(tmp_path, network, name, suffix):
    loaded = assert_same(save(NAMES[name](network.state_dict()), tmp_path / f"a{suffix}"), network)
    assert not any("This is a guess" in note for note in loaded.notes)


def numbered(weights):
    """Name each layer by a number, as converters from other frameworks do."""
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in weights))
    return {f"blob{layers.index(name.rpartition('.')[0])}.{name.rpartition('.')[2]}": t for name, t in weights.items()}


def test_weights_are_matched_by_order_where_the_file_keeps_it(tmp_path, network):
    loaded = assert_same(save(numbered(network.state_dict()), tmp_path / "a.pth"), network)
    assert any("This is a guess" in note for note in loaded.notes)
    with pytest.raises(InvalidCheckpoint, match=r"torch\.save keeps their order"):
        load_model(
            ModelSpec(library="auto", checkpoint=str(save(numbered(network.state_dict()), tmp_path / "a.safetensors")))
        )


def quantization_aware(model):
    model.train().qconfig = quantization.get_default_qat_qconfig("fbgemm")
    quantization.prepare_qat(model, inplace=True)


def observed(model):
    model.qconfig = quantization.get_default_qconfig("fbgemm")
    quantization.prepare(model, inplace=True)


@pytest.mark.parametrize("prepare", [quantization_aware, observed])
@pytest.mark.parametrize("suffix", first_of([".pth", ".safetensors"]))
@pytest.mark.filterwarnings("ignore")
def test_scales_of_observers_are_left_out(tmp_path, network, prepare, suffix):
    prepared = changed(network, prepare)
    prepared(torch.rand(1, 3, 48, 48))
    assert len(prepared.state_dict()) > len(network.state_dict())
    loaded = assert_same(save(prepared.state_dict(), tmp_path / f"a{suffix}"), network)
    assert any(f"Left out, as timm/{MODEL} has no such weights:" in note for note in loaded.notes)


def prune_all(model):
    for layer in convolutions(model):
        prune.l1_unstructured(layer, "weight", 0.3)


def weight_norm_all(model):
    for layer in (*convolutions(model), model.fc):
        old_weight_norm(layer)
        layer.weight_g.data.mul_(torch.rand_like(layer.weight_g) + 0.5)


def weight_norm_new(model):
    for layer in (*convolutions(model), model.fc):
        parametrizations.weight_norm(layer, dim=None if layer is model.fc else 0)
        layer.parametrizations.weight.original0.data.mul_(1.5)


def spectral_all(model):
    for layer in (*convolutions(model), model.fc):
        old_spectral_norm(layer)


def spectral_new(model):
    for layer in (*convolutions(model), model.fc):
        parametrizations.spectral_norm(layer)


PARTS = {
    "torch.nn.utils.prune": prune_all,
    "weight_norm": weight_norm_all,
    "parametrizations.weight_norm": weight_norm_new,
    "spectral_norm": spectral_all,
    "parametrizations.spectral_norm": spectral_new,
}


@pytest.mark.parametrize("suffix", first_of([".pth", ".safetensors"]))
@pytest.mark.parametrize("name", PARTS)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_weights_in_parts_are_put_together_as_the_layer_does(tmp_path, network, name, suffix):
    other = changed(network, PARTS[name])
    weights = other.state_dict()
    assert set(weights) != set(network.state_dict())
    loaded = assert_same(save(under("model.", weights), tmp_path / f"a{suffix}"), other)
    assert any(note.startswith("Put together from") for note in loaded.notes)


@pytest.mark.parametrize("norm", [old_spectral_norm, parametrizations.spectral_norm])
def test_the_outputs_of_a_transposed_convolution_are_its_second_axis(norm):
    layer = norm(nn.ConvTranspose2d(4, 6, 3, bias=False)).eval()
    weights, _ = plain_weights(layer.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(weights["weight"], layer(torch.eye(4)[..., None, None]))


def test_masks_beside_weights_are_multiplied(tmp_path, network):
    masks, expected = {}, copy.deepcopy(network)
    for name, layer in expected.named_modules():
        if isinstance(layer, nn.Conv2d):
            masks[f"{name}.weight_mask"] = (torch.rand_like(layer.weight) < 0.7).float()
            layer.weight.data.mul_(masks[f"{name}.weight_mask"])
    assert_same(save({**network.state_dict(), **masks}, tmp_path / "a.pth"), expected)


def test_two_networks_in_a_file_are_a_choice(tmp_path, network):
    teacher = changed(network, lambda model: model.fc.weight.data.mul_(2))
    weights = {**under("student.", network.state_dict()), **under("teacher.", teacher.state_dict())}
    for suffix in (".pth", ".safetensors"):
        path = save(weights, tmp_path / f"a{suffix}")
        loaded = assert_same(path, network)
        assert any("holds 2 networks (student, teacher): the weights of student are used" in n for n in loaded.notes)
        assert_same(path, teacher, network_name="teacher")
        with pytest.raises(InvalidCheckpoint, match=r"no network named 'judge'\. Choose one of: student, teacher"):
            load_model(ModelSpec(library="auto", checkpoint=str(path), network="judge"))


AVERAGED = [("state_dict", "state_dict_ema"), ("model", "model_ema"), ("net", "ema.module")]


@pytest.mark.parametrize("keys", first_of(map(pytest.param, AVERAGED)))
def test_averaged_weights_are_chosen_by_a_part_of_their_name(tmp_path, network, keys):
    averaged = changed(network, lambda model: model.fc.weight.data.mul_(2))
    plain, other = keys
    save({plain: network.state_dict(), other: averaged.state_dict()}, tmp_path / "a.pth")
    assert_same(tmp_path / "a.pth", network)
    assert_same(tmp_path / "a.pth", averaged, network_name="ema")
    named = ModelSpec(library="timm", name=MODEL, checkpoint=str(tmp_path / "a.pth"), network="ema")
    assert torch.equal(load_model(named).module.fc.weight, averaged.fc.weight)


def test_one_network_that_is_kept_twice_is_one(tmp_path, network):
    weights = network.state_dict()
    save({"state_dict": weights, "best": weights}, tmp_path / "a.pth")
    assert not any("networks" in note for note in assert_same(tmp_path / "a.pth", network).notes)


def lora(weights):
    pairs = [f"base_model.model.{name.removesuffix('.weight')}" for name in weights if name.endswith("conv1.weight")]
    return {f"{name}.lora_{side}.weight": torch.ones(4, 8) for name in pairs for side in "AB"}


def with_lora(weights):
    first = next(name for name in weights if name.endswith("conv1.weight")).removesuffix("weight")
    return {**weights, f"{first}lora_A.weight": torch.ones(4, 8), f"{first}lora_B.weight": torch.ones(8, 4)}


def with_attention(weights):
    return {**weights, "layer1.0.cbam.fc.weight": torch.ones(4, 8), "layer2.0.cbam.fc.weight": torch.ones(4, 8)}


def quantized(weights):
    return {
        name: torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8) if tensor.dim() == 4 else tensor
        for name, tensor in weights.items()
    }


def unknown_function(weights):
    return {name.replace("conv1.weight", "conv1.parametrizations.weight.original"): t for name, t in weights.items()}


def with_directions(weights):
    return {name.replace("conv1.weight", "conv1.weight_v"): tensor for name, tensor in weights.items()}


def first_half(weights):
    return dict(list(weights.items())[: len(weights) // 2])


def beside_each(*endings, kept):
    """Return what tools leave of weights (O, K): entries of their own under its name, the weight itself if ``kept``."""

    def change(weights):
        found = dict(weights)
        for name in [name for name in weights if name.endswith("conv1.weight")]:
            weight = found.pop(name)
            if kept:
                found[name] = (weight * 99).to(torch.int8)
            found |= {f"{name.removesuffix('weight')}{ending}": torch.ones(3) for ending in endings}
        return found

    return change


REFUSED = {
    "by torch.ao": ("a.pth", beside_each("scale", "zero_point", kept=False), "holds a network that was quantized"),
    "by bitsandbytes": (
        "a.safetensors",
        beside_each("weight.absmax", "weight.quant_map", kept=False),
        "a network that was quantized",
    ),
    "by bitsandbytes, 8 bits": (
        "a.pth",
        beside_each("SCB", kept=True),
        "are whole numbers .*: the network was quantized",
    ),
    "by GPTQ": (
        "a.safetensors",
        beside_each("qweight", "qzeros", "scales", "g_idx", kept=False),
        "a network that was quantized",
    ),
    "by quanto": ("a.pth", beside_each("weight._data", "weight._scale", kept=False), "that was quantized"),
    "by compressed-tensors": ("a.pth", beside_each("weight_packed", kept=False), "that was quantized"),
    "an adapter": ("a.safetensors", lora, "holds an adapter, not a network"),
    "an adapter that was not merged": ("a.pth", with_lora, "a network with an adapter that was not merged"),
    "a shard": ("model-00001-of-00003.safetensors", first_half, "is part 1 of 3 of a checkpoint"),
    "a shard without its number": ("a.pth", first_half, "weights of this architecture and nothing else: a part"),
    "a variant": ("a.pth", with_attention, rf"Compared with timm/{MODEL}: 2 unexpected .* a larger variant"),
    "integers": ("a.pth", quantized, "are not plain numbers: .* is quantized to integers"),
    "sparse": ("a.pth", lambda w: {**w, "fc.weight": w["fc.weight"].to_sparse()}, "fc.weight is sparse"),
    "an unknown function": ("a.pth", unknown_function, "from which a function computes those of the layers"),
    "norms and directions": ("a.pth", with_directions, "computes those of the layers .*conv1.weight_v"),
    "integers as they are": (
        "a.pth",
        lambda w: {n: (t * 99).to(torch.int8) if t.dim() == 4 else t for n, t in w.items()},
        "weights in a.pth are whole numbers .*quantized. Bring the float weights",
    ),
    "a transposed classifier": (
        "a.pth",
        lambda w: {**w, "fc.weight": w["fc.weight"].t().contiguous()},
        r"1 of another shape \(fc.weight \(96, 5\) for \(96, 96\)\)",
    ),
    "one weight missing": (
        "a.pth",
        lambda w: {n: t for n, t in w.items() if n != "layer2.0.conv1.weight"},
        r"Compared with timm/\w+: 1 missing \(layer2.0.conv1.weight\)",
    ),
    "without numbers": ("a.pth", lambda w: {n: t.to("meta") for n, t in w.items()}, "without its numbers"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_loaded_is_refused_with_its_cause(tmp_path, network, name):
    file_name, change, cause = REFUSED[name]
    path = save(change(network.state_dict()), tmp_path / file_name)
    with pytest.raises(InvalidCheckpoint, match=cause) as refused:
        load_model(ModelSpec(library="auto", checkpoint=str(path)))
    assert "damaged" not in str(refused.value)


@pytest.mark.slow
def test_the_right_one_of_many_similar_networks_is_found_beside_scales():
    state = build_on_meta("timm", "vit_base_patch16_224", num_classes=7).state_dict()
    tensors = under("a.student.", state)
    tensors |= {f"a.student.{name}.scale": torch.zeros(1) for name in state if name.endswith("qkv.weight")}
    (found,) = find_networks(Checkpoint(file_name="a.pth", tensors=tensors))
    assert (found.prefix, found.candidates[0].num_classes) == ("a.student.", 7)
    assert "timm/vit_base_patch16_224" in [item.title for item in found.candidates if item.fits]
