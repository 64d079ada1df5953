"""The demo that ships: its split is fixed, its network is as good as promised, its zip is what people unpack."""

import hashlib
import io
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from senseapp.core.errors import InvalidCheckpoint
from senseapp.data.load import demo_pictures, load_demo_images, write_demo_zip
from senseapp.networks.sources import demo
from senseapp.networks.sources.demo import DEMO_PREPROCESSING, load_demo_model


@pytest.fixture(scope="module")
def heldout():
    return load_demo_images("heldout")


def test_split_is_the_one_the_network_was_trained_on(heldout):
    train = load_demo_images("train").names
    assert (len(train), len(heldout), len({name.split("-")[1] for name in train + heldout.names})) == (900, 897, 1797)
    assert hashlib.sha256("\n".join(train).encode()).hexdigest()[:16] == "cfc01cf296e8a79b"


def test_pictures_cannot_be_changed_for_everybody():
    with pytest.raises(ValueError, match="read-only"):
        demo_pictures()[0, 0, 0] = 1


def test_images_are_the_normalised_pictures(heldout):
    (mean,), (std,) = DEMO_PREPROCESSING.mean, DEMO_PREPROCESSING.std
    expected = (demo_pictures()[7] / 255.0 - mean) / std
    np.testing.assert_allclose(heldout.batch(7, 8)[0, 0].numpy(), expected, rtol=1e-5, atol=1e-6)


def test_heldout_accuracy(heldout):
    loaded = load_demo_model()
    assert (loaded.title, loaded.pretrained, loaded.class_names) == ("demo", True, tuple("0123456789"))
    assert not loaded.module.training
    with torch.inference_mode():
        scores = loaded.module(heldout.batch(0, len(heldout)))
    assert scores.shape == (897, loaded.num_classes)
    assert (scores.argmax(1) == heldout.labels).double().mean().item() >= 0.97


def test_each_load_is_a_model_of_its_own():
    first, second = load_demo_model().module, load_demo_model().module
    with torch.no_grad():
        first.fc.weight.zero_()
    assert second.fc.weight.abs().sum() > 0


def test_missing_weights_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "DEMO_WEIGHTS", tmp_path / "demo.safetensors")
    with pytest.raises(InvalidCheckpoint, match=r"demo\.safetensors.*train_demo\.py"):
        load_demo_model()


def test_zip_holds_the_pictures_in_class_folders_and_is_the_same_each_time(tmp_path, heldout):
    for name in ("digits.zip", "again.zip"):
        write_demo_zip(tmp_path / name)
    assert (tmp_path / "digits.zip").read_bytes() == (tmp_path / "again.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "digits.zip") as archive:
        assert tuple(archive.namelist()) == heldout.names
        picture = np.asarray(Image.open(io.BytesIO(archive.read(heldout.names[5]))))
    np.testing.assert_array_equal(picture, demo_pictures()[5])
