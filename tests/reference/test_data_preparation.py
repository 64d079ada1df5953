"""Prepared images equal timm's own transform, applied to the files directly, bit for bit."""

import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform
from timm.data.config import resolve_model_data_config
from torchvision.models import get_model_weights

from senseapp.data.load import load_images
from senseapp.networks.loaded import Preprocessing
from senseapp.networks.sources.load import load_model
from senseapp.records.spec import DataSpec, ModelSpec
from senseapp.tasks import CLASSIFICATION
from tests.cases import first_of
from tests.pictures import encoded, random_picture, write_folder

SIZES = [(40, 30), (31, 57), (24, 24), (200, 90)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    files = {f"{i}.jpg": encoded(random_picture(i, size), "JPEG", quality=90) for i, size in enumerate(SIZES)}
    files["4.png"] = encoded(random_picture(4, (50, 50), "RGBA"))
    files["5.tif"] = encoded(random_picture(5, (33, 70), "CMYK"), "TIFF")
    return write_folder(tmp_path_factory.mktemp("set"), files)


def loaded(folder, preprocessing, **overrides):
    spec = DataSpec(kind="folder", path=str(folder), **overrides)
    images = load_images(spec, preprocessing, num_classes=10, task=CLASSIFICATION)
    return images.batch(0, len(images))


def expected(folder, transform, mode="RGB"):
    """Return what torchvision's image folder and a transform make of the files."""
    return torch.stack([transform(Image.open(path).convert(mode)) for path in sorted(folder.iterdir())])


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("crop_pct", first_of([0.875, 1.0, 0.5, 0.9], 2))
@pytest.mark.parametrize("size", [(32, 32), (32, 24)])
def test_equals_timms_transform(folder, size, crop_pct, interpolation):
    settings = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    settings |= {"crop_pct": crop_pct, "interpolation": interpolation}
    transform = create_transform((3, *size), is_training=False, **settings)
    assert torch.equal(loaded(folder, Preprocessing(input_shape=(3, *size), **settings)), expected(folder, transform))


def test_equals_timms_transform_for_grey_models(folder):
    settings = {"mean": (0.3,), "std": (0.2,), "crop_pct": 0.9, "interpolation": "bicubic"}
    transform = create_transform((1, 16, 16), is_training=False, **settings)
    found = loaded(folder, Preprocessing(input_shape=(1, 16, 16), **settings))
    assert torch.equal(found, expected(folder, transform, "L"))


def test_equals_timms_transform_for_a_whole_model(folder):
    name = "test_vit"
    model = load_model(ModelSpec(library="timm", name=name))
    config = resolve_model_data_config(timm.create_model(name))
    assert torch.equal(
        loaded(folder, model.preprocessing), expected(folder, create_transform(**config, is_training=False))
    )


def test_equals_torchvisions_transform(folder):
    model = load_model(ModelSpec(library="torchvision", name="shufflenet_v2_x0_5"))
    transform = get_model_weights("shufflenet_v2_x0_5").DEFAULT.transforms()
    torch.testing.assert_close(loaded(folder, model.preprocessing), expected(folder, transform))
