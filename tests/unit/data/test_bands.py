"""Pictures of two channels, or of more than three, for networks that take as many: each channel as it is stored."""

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import tifffile
import torch
from PIL import Image

from senseapp.core.errors import InvalidDataset
from senseapp.data.load import load_images
from senseapp.data.pictures import preview, survey_images
from senseapp.networks.loaded import Preprocessing
from senseapp.records.spec import DataSpec, ModelSpec, RunSpec
from senseapp.server.run_requests import preview_images
from senseapp.tasks import CLASSIFICATION
from tests.pictures import encoded, write_folder

SIZE = 8
Pixels = npt.NDArray[np.uint8]


def prepared(channels: int) -> Preprocessing:
    return Preprocessing(
        input_shape=(channels, SIZE, SIZE), mean=(0.0,) * channels, std=tuple(1 + i for i in range(channels))
    )


def pixels_of(channels: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (SIZE, SIZE, channels), dtype=np.uint8)


def png(values: Pixels) -> bytes:
    return encoded(Image.fromarray(values))


def tiff(values: npt.NDArray[np.generic], **options: object) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, values, **{"photometric": "minisblack", "planarconfig": "contig", **options})
    return file.getvalue()


def rgb_and_more(values: npt.NDArray[np.generic]) -> bytes:
    return tiff(values, photometric="rgb", extrasamples=["unspecified"] * (values.shape[2] - 3))


def folder_of(path: Path, **files: bytes) -> DataSpec:
    named = {name.replace("_", "."): file for name, file in files.items()}
    return DataSpec(kind="folder", path=str(write_folder(path, named)))


def loaded(spec: DataSpec, channels: int) -> npt.NDArray[np.float64]:
    """Return the one picture there in whole numbers, (H, W, C), with the division by each std taken back."""
    images = load_images(spec, prepared(channels), num_classes=2, task=CLASSIFICATION)
    std = torch.tensor(images.preprocessing.std).view(-1, 1, 1)
    return np.rint((images.batch(0, 1)[0] * std * 255).numpy().transpose(1, 2, 0))


WRITTEN = {
    "grey and alpha": (2, "a_png", png),
    "colours and alpha": (4, "a_png", png),
    "colours and near infrared": (4, "a_tif", rgb_and_more),
    "two": (2, "a_tif", tiff),
    "five": (5, "a_tiff", tiff),
    "thirteen": (13, "a_tif", tiff),
    "deflated": (6, "a_tif", lambda values: tiff(values, compression="zlib")),
    "apart": (5, "a_tif", lambda values: tiff(np.moveaxis(values, 2, 0), planarconfig="separate")),
}


@pytest.mark.parametrize("form", WRITTEN)
def test_every_channel_is_that_of_the_file(form: str, tmp_path: Path) -> None:
    channels, name, write = WRITTEN[form]
    values = pixels_of(channels)
    assert (loaded(folder_of(tmp_path, **{name: write(values)}), channels) == values).all()


def test_twelve_bits_in_sixteen_are_scaled_in_every_channel(tmp_path: Path) -> None:
    values = np.random.default_rng(1).integers(0, 4096, (SIZE, SIZE, 6), dtype=np.uint16)
    values[0, 0] = 4095
    spec = folder_of(tmp_path, a_tif=tiff(values))
    assert (loaded(spec, 6) == values >> 4).all()
    assert any(
        "from 12 to 8 bits" in note for note in load_images(spec, prepared(6), num_classes=2, task=CLASSIFICATION).notes
    )


def test_pictures_of_another_number_of_channels_are_left_out_and_named(tmp_path: Path) -> None:
    spec = folder_of(tmp_path, a_png=png(pixels_of(3)), b_png=png(pixels_of(4)))
    images = load_images(spec, prepared(4), num_classes=2, task=CLASSIFICATION)
    assert images.names == ("b.png",)
    assert any("a.png (3 channels, and the model takes 4)" in note for note in images.notes)
    with pytest.raises(InvalidDataset, match="channels, and the model takes 5"):
        load_images(spec, prepared(5), num_classes=2, task=CLASSIFICATION)


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (tiff(pixels_of(5).astype(np.float32)), "numbers of the type float32"),
        (tiff(np.zeros((SIZE, SIZE, 65), np.uint8)), "65 channels, more than 64"),
        (tiff(pixels_of(5))[:60], "damaged"),
        (b"II*\0" + bytes(40), "damaged|no pixels"),
    ],
)
def test_what_cannot_be_read_has_a_reason(file: bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidDataset, match=reason):
        load_images(folder_of(tmp_path, a_tif=file), prepared(5), num_classes=2, task=CLASSIFICATION)


def test_a_survey_and_a_preview_show_them(tmp_path: Path) -> None:
    values = np.random.default_rng(2).integers(0, 256, (40, 40, 5), dtype=np.uint8)
    spec = folder_of(tmp_path, a_tif=tiff(values))
    assert survey_images(spec, num_classes=2, task=CLASSIFICATION).num_images == 1
    model = ModelSpec(library="timm", name="test_resnet", num_classes=2, in_chans=5)
    (picture,) = preview_images(RunSpec(model=model, data=spec), num_images=1).pictures
    assert Image.open(io.BytesIO(picture.png)).mode == "RGB"


def test_thumbnails_are_of_the_first_three_channels_and_bgr_turns_only_these(tmp_path: Path) -> None:
    values = pixels_of(4)
    spec = DataSpec(kind="folder", path=folder_of(tmp_path, a_png=png(values)).path, channel_order="bgr")
    how = Preprocessing(input_shape=(4, SIZE, SIZE), mean=(0.0,) * 4, std=(1.0,) * 4, channel_order="bgr")
    images = load_images(spec, how, num_classes=2, task=CLASSIFICATION)
    assert (np.rint(images.batch(0, 1)[0].numpy() * 255) == values.transpose(2, 0, 1)[[2, 1, 0, 3]]).all()
    assert (preview(images, how).pictures[0] == values[..., :3]).all()
