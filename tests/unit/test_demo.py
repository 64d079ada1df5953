"""The demo that ships: its split is fixed, its network is as good as promised, its zip is what people unpack."""

import hashlib
import io
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from senseapp.core.errors import InvalidCheckpoint
from senseapp.data.load import demo_pictures, load_demo_images, write_demo_zip
from senseapp.networks.sources import demo
from senseapp.networks.sources.demo import DEMO_PREPROCESSING, DEMO_WEIGHTS, build_demo_network, load_demo_model


@pytest.fixture(scope="module")
def heldout():
    return load_demo_images("heldout")


def test_split_covers_all_digits_once():
    train, heldout = load_demo_images("train"), load_demo_images("heldout")
    numbers = {name.split("-")[1] for name in train.names + heldout.names}
    assert (len(train), len(heldout), len(numbers)) == (900, 897, 1797)


def test_split_is_the_one_the_network_was_trained_on():
    names = "\n".join(load_demo_images("train").names)
    assert hashlib.sha256(names.encode()).hexdigest()[:16] == "cfc01cf296e8a79b"


def test_classes_are_in_proportion():
    train, heldout = (np.bincount(load_demo_images(split).labels.numpy()) for split in ("train", "heldout"))
    assert np.abs(train - heldout).max() <= 2


def test_images_have_the_networks_shape_and_are_normalised(heldout):
    images = load_demo_images("train").batch(0, 900)
    assert images.shape == (900, *DEMO_PREPROCESSING.input_shape)
    assert images.dtype == torch.float32
    assert abs(images.mean().item()) < 0.02
    assert abs(images.std().item() - 1) < 0.02
    assert heldout.class_names == tuple("0123456789")


def test_names_carry_the_label(heldout):
    assert [int(name[0]) for name in heldout.names] == heldout.labels.tolist()


def test_pictures_cannot_be_changed_for_everybody():
    with pytest.raises(ValueError, match="read-only"):
        demo_pictures()[0, 0, 0] = 1


def test_images_are_the_normalised_pictures(heldout):
    (mean,), (std,) = DEMO_PREPROCESSING.mean, DEMO_PREPROCESSING.std
    expected = (demo_pictures()[7] / 255.0 - mean) / std
    np.testing.assert_allclose(heldout.batch(7, 8)[0, 0].numpy(), expected, rtol=1e-5, atol=1e-6)


def test_network_has_enough_layers():
    layers = [module for module in build_demo_network().modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert len(layers) == 23


def test_heldout_accuracy(heldout):
    loaded = load_demo_model()
    with torch.inference_mode():
        scores = loaded.module(heldout.batch(0, len(heldout)))
    assert scores.shape == (897, loaded.num_classes)
    assert (scores.argmax(1) == heldout.labels).double().mean().item() >= 0.97


def test_loaded_model_is_described():
    loaded = load_demo_model()
    assert (loaded.title, loaded.pretrained, loaded.class_names) == ("demo", True, tuple("0123456789"))
    assert not loaded.module.training


def test_each_load_is_a_model_of_its_own():
    first, second = load_demo_model().module, load_demo_model().module
    with torch.no_grad():
        first.fc.weight.zero_()
    assert second.fc.weight.abs().sum() > 0


def test_weights_are_small():
    assert DEMO_WEIGHTS.stat().st_size < 12e6


def test_missing_weights_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "DEMO_WEIGHTS", tmp_path / "demo.safetensors")
    with pytest.raises(InvalidCheckpoint, match=r"demo\.safetensors.*train_demo\.py"):
        load_demo_model()


def test_zip_holds_the_pictures_in_class_folders(tmp_path, heldout):
    write_demo_zip(tmp_path / "digits.zip")
    with zipfile.ZipFile(tmp_path / "digits.zip") as archive:
        assert tuple(archive.namelist()) == heldout.names
        picture = np.asarray(Image.open(io.BytesIO(archive.read(heldout.names[5]))))
    np.testing.assert_array_equal(picture, demo_pictures()[5])


def test_zip_is_the_same_each_time(tmp_path):
    for name in ("a.zip", "b.zip"):
        write_demo_zip(tmp_path / name)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
