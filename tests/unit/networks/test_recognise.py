"""Architectures recognised from names and shapes, and the sizes read off them."""

import timm
import torch

from scripts.recognition import find_free_dimensions
from senseapp.networks.checkpoints.architectures import BuiltWith
from senseapp.networks.checkpoints.checkpoint import Checkpoint
from senseapp.networks.checkpoints.stored_networks import find_networks


def shapes_of(name, **settings):
    with torch.device("meta"):
        module = timm.create_model(name, **settings)
    return {key: tuple(tensor.shape) for key, tensor in module.state_dict().items()}


def recognise(shapes, **hints):
    tensors = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    return find_networks(Checkpoint(file_name="a.pth", tensors=tensors, **hints))[0].candidates


def test_all_that_the_shapes_tell_is_read_off():
    best = recognise(shapes_of("vit_tiny_patch16_224", num_classes=12, in_chans=4, img_size=192))[0]
    assert best.exact
    assert (best.num_classes, best.in_chans, best.img_size) == (12, 4, 192)
    assert best.name.startswith(("vit_tiny_patch16", "deit_tiny_patch16"))


def test_the_patch_size_tells_architectures_apart():
    assert recognise(shapes_of("vit_base_patch32_224"))[0].name == "vit_base_patch32_224"
    assert recognise(shapes_of("vit_base_patch16_224"))[0].name == "vit_base_patch16_224"


def test_the_image_size_tells_twins_apart():
    found = recognise(shapes_of("vit_base_patch16_384", num_classes=3))
    assert found[0].img_size == 384
    assert found[0].name.endswith("384")
    smaller = next(candidate for candidate in found if candidate.name == "vit_base_patch16_224")
    assert smaller.exact
    assert smaller.score < found[0].score


def test_identical_twins_share_the_score_and_the_hint_decides():
    shapes = shapes_of("efficientnet_b0", num_classes=10)
    plain, hinted = recognise(shapes), recognise(shapes, arch_hint="tf_efficientnet_b0")
    scores = {candidate.name: candidate.score for candidate in plain}
    assert scores["efficientnet_b0"] == scores["tf_efficientnet_b0"] == 1.0
    assert plain[0].name == "efficientnet_b0"
    assert hinted[0].name == "tf_efficientnet_b0"


def test_a_network_with_another_head_is_alike_but_not_exact():
    shapes = {key.replace("fc.", "fc.1."): shape for key, shape in shapes_of("resnet18").items()}
    renamed, deeper = recognise(shapes)[0], recognise(shapes | {"fc.4.weight": (10, 1000), "fc.4.bias": (10,)})[0]
    assert renamed.name == deeper.name == "resnet18"
    assert not renamed.exact
    assert renamed.fits
    assert not deeper.fits
    assert 0.8 < deeper.score < 0.96


def rule_for(a, b, side_a=32, side_b=64):
    built = BuiltWith(num_classes=10, in_chans=3, img_size=side_a)
    other = BuiltWith(num_classes=13, in_chans=3, img_size=side_b)
    return find_free_dimensions({"table": (a, 7)}, built, {"table": (b, 7)}, other).size


def test_the_three_laws_of_the_image_size():
    area = rule_for(1 + 8**2, 1 + 16**2)  # a token per patch of 4, and one for the class
    assert (area.law, area.side(1 + 12**2)) == ("area", 48)
    assert area.side(100) is None
    window = rule_for((2 * 8 - 1) ** 2 + 3, (2 * 16 - 1) ** 2 + 3)  # BEiT's relative positions
    assert (window.law, window.side((2 * 12 - 1) ** 2 + 3)) == ("window", 48)
    side = rule_for(2 * 8 - 1, 2 * 16 - 1)  # relative positions along one axis
    assert (side.law, side.side(2 * 12 - 1)) == ("side", 48)
    assert rule_for(7, 5) is None
