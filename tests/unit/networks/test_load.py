"""From a model spec to a network: weights, sizes, preprocessing, and what is refused."""

import socket
import urllib.request

import pytest
import safetensors.torch
import timm
import torch
from torch import nn

from senseapp.core.errors import InvalidCheckpoint, InvalidSpec, UnknownModel, UnsupportedModel
from senseapp.networks.sources.catalogue import parse_model
from senseapp.networks.sources.load import load_model
from senseapp.records.spec import ModelSpec


def timm_spec(name, **settings):
    return ModelSpec(library="timm", name=name, **settings)


def torchvision_spec(name, **settings):
    return ModelSpec(library="torchvision", name=name, **settings)


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """No server answers, and nothing was ever downloaded."""

    def refuse(*_, **__):
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(urllib.request, "getproxies", dict)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))


def forward(loaded):
    images = torch.zeros((1, *loaded.preprocessing.input_shape))
    with torch.no_grad():
        return loaded.module(images)


@pytest.mark.parametrize("spec", [timm_spec("test_resnet"), torchvision_spec("squeezenet1_1")])
def test_random_weights_are_the_same_each_time_and_labelled(spec):
    torch.manual_seed(1)
    first = load_model(spec)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    second = load_model(spec)
    assert torch.equal(state, torch.get_rng_state())
    for a, b in zip(first.module.parameters(), second.module.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not first.pretrained
    assert any("Random weights" in note for note in first.notes)
    assert first.class_names == ()


@pytest.mark.parametrize("spec", [timm_spec("test_vit"), torchvision_spec("shufflenet_v2_x0_5"), ModelSpec()])
def test_a_loaded_network_is_ready_to_be_measured(spec):
    loaded = load_model(spec)
    assert not loaded.module.training
    assert not any(parameter.requires_grad for parameter in loaded.module.parameters())
    assert {parameter.dtype for parameter in loaded.module.parameters()} == {torch.float32}
    assert forward(loaded).shape == (1, loaded.num_classes)
    assert loaded.title == spec.title


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_timm_takes_classes_channels_and_image_size(name):
    loaded = load_model(timm_spec(name, num_classes=7, in_chans=1, img_size=96))
    assert loaded.num_classes == 7
    assert loaded.preprocessing.input_shape == (1, 96, 96)
    assert len(loaded.preprocessing.mean) == len(loaded.preprocessing.std) == 1
    assert forward(loaded).shape == (1, 7)


def test_torchvision_takes_classes_channels_and_image_size():
    loaded = load_model(torchvision_spec("squeezenet1_1", num_classes=7, in_chans=2, img_size=96))
    first = next(module for module in loaded.module.modules() if isinstance(module, nn.Conv2d))
    assert (loaded.preprocessing.input_shape, first.in_channels) == ((2, 96, 96), 2)
    assert forward(loaded).shape == (1, 7)


@pytest.mark.parametrize(
    ("spec", "crop_pct", "interpolation"),
    [
        (timm_spec("mobilenetv3_small_050"), 0.875, "bicubic"),
        (torchvision_spec("mobilenet_v3_small"), 224 / 256, "bilinear"),
    ],
)
def test_preprocessing_is_that_of_the_library(spec, crop_pct, interpolation):
    found = load_model(spec).preprocessing
    assert (found.input_shape, found.mean, found.std) == ((3, 224, 224), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert (found.crop_pct, found.interpolation) == (pytest.approx(crop_pct), interpolation)


@pytest.mark.parametrize(
    "spec",
    [
        torchvision_spec("vit_b_16", img_size=65),
        torchvision_spec("maxvit_t", img_size=100),
        torchvision_spec("squeezenet1_1", img_size=12),
        timm_spec("test_vit", img_size=100_000),
    ],
)
def test_an_image_size_that_the_network_cannot_take_is_refused(spec):
    with pytest.raises(InvalidSpec, match=rf"{spec.title}.*(Leave|up to)"):
        load_model(spec)


def test_an_unknown_name_gets_the_three_closest():
    with pytest.raises(UnknownModel) as refused:
        load_model(timm_spec("resnet19"))
    closest = str(refused.value).split("closest names are ")[1].rstrip(".").split(", ")
    assert len(closest) == 3
    assert "timm/resnet18" in closest
    with pytest.raises(UnknownModel, match=r"resnet18\.a1_in1k"):
        load_model(timm_spec("resnet18.nonsense"))


@pytest.mark.parametrize("name", ["hf-hub:timm/resnet18", "local-dir:/etc", "../resnet18"])
def test_a_name_cannot_point_anywhere_else(name):
    with pytest.raises(UnknownModel):
        load_model(timm_spec(name))


def test_segmentation_networks_of_torchvision_load_without_auxiliary_outputs():
    name = "deeplabv3_mobilenet_v3_large"
    assert parse_model(name).task == "segmentation"
    loaded = load_model(torchvision_spec(name, num_classes=4, img_size=64))
    assert (loaded.task, loaded.num_classes, loaded.class_names) == ("segmentation", 4, ())
    assert not any(part.startswith("aux") for part, _ in loaded.module.named_modules())
    found = forward(loaded)
    assert list(found) == ["out"]
    assert found["out"].shape == (1, 4, 64, 64)


def test_a_network_without_classifier_asks_for_classes():
    with pytest.raises(UnsupportedModel, match="number of classes"):
        load_model(timm_spec("vit_small_patch14_dinov2", img_size=28))
    loaded = load_model(timm_spec("vit_small_patch14_dinov2", img_size=28, num_classes=3))
    assert forward(loaded).shape == (1, 3)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    "spec", [timm_spec("resnet18", pretrained=True), torchvision_spec("resnet18", pretrained=True)]
)
def test_without_network_the_ways_that_work_are_offered(spec):
    with pytest.raises(InvalidCheckpoint, match=r"Upload weights.*random weights.*demo"):
        load_model(spec)


@pytest.mark.usefixtures("offline")
def test_published_weights_of_torchvision_are_read_from_its_cache(tmp_path):
    published = load_model(torchvision_spec("squeezenet1_1")).module.state_dict()
    published = {name: tensor + 1 for name, tensor in published.items()}
    (tmp_path / "checkpoints").mkdir()
    torch.save(published, tmp_path / "checkpoints" / "squeezenet1_1-b8a52dc0.pth")
    with pytest.raises((InvalidCheckpoint, InvalidSpec)):
        load_model(torchvision_spec("squeezenet1_1", pretrained=True, num_classes=3))
    loaded = load_model(torchvision_spec("squeezenet1_1", pretrained=True))
    assert loaded.pretrained
    assert loaded.class_names[0] == "tench"
    for name, tensor in loaded.module.state_dict().items():
        assert torch.equal(tensor, published[name])


@pytest.mark.usefixtures("offline")
def test_published_weights_of_timm_are_read_from_its_cache(monkeypatch, tmp_path):
    published = {name: tensor + 1 for name, tensor in timm.create_model("test_resnet").state_dict().items()}
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(published, path)
    monkeypatch.setattr("senseapp.networks.sources.libraries.try_to_load_from_cache", lambda *_: str(path))
    loaded = load_model(timm_spec("test_resnet", pretrained=True))
    assert loaded.pretrained
    assert len(loaded.class_names) == 1000
    for name, tensor in loaded.module.state_dict().items():
        assert torch.equal(tensor, published[name])


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (timm_spec("test_resnet", pretrained=True, num_classes=5), "untrained"),
        (timm_spec("rexnetr_130", pretrained=True), "No weights were published"),
        (ModelSpec(num_classes=5), "demo"),
        (ModelSpec(library="auto"), "checkpoint"),
    ],
)
def test_settings_without_weights_of_their_own_are_refused(monkeypatch, spec, said):
    monkeypatch.setattr("senseapp.networks.sources.libraries.is_reachable", lambda _: True)
    with pytest.raises(InvalidSpec, match=said):
        load_model(spec)
