"""What goes with an ONNX file: its metadata, and the script that prepares pictures as the app does."""

import json
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from torch import nn

from senseapp.networks.loaded import Preprocessing
from senseapp.networks.onnx.metadata import told_of
from senseapp.reconstruct.write import onnx_model
from senseapp.runtimes.base import runtime_named
from senseapp.runtimes.predict import as_taken, predict, prepare
from tests.cases import first_of
from tests.pictures import timm_crop

pytestmark = pytest.mark.slow  # exports a network

FORMAT = runtime_named("onnxruntime")
PREPARATION = Preprocessing(
    input_shape=(3, 24, 24), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25), crop_pct=0.75, interpolation="bicubic"
)


def a_picture(width: int, height: int) -> Image.Image:
    values = np.random.default_rng(width * height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def as_json(preprocessing: Preprocessing) -> dict[str, object]:
    return json.loads(json.dumps({name: getattr(preprocessing, name) for name in Preprocessing.__slots__}))


@pytest.mark.parametrize("size", [(40, 40), (57, 33), (31, 90), (24, 24), (20, 64)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("order", first_of(["bgr", "rgb"]))
def test_the_script_prepares_pictures_as_the_app_does(size, interpolation, order) -> None:
    how = Preprocessing(
        input_shape=(3, 24, 24), mean=PREPARATION.mean, std=PREPARATION.std, crop_pct=0.8,
        interpolation=interpolation, channel_order=order,
    )  # fmt: skip
    picture = a_picture(*size)
    pixels = timm_crop(picture, how)
    pixels = pixels.flip(0) if order == "bgr" else pixels
    expected = (pixels.float() / 255 - torch.tensor(how.mean).view(-1, 1, 1)) / torch.tensor(how.std).view(-1, 1, 1)
    np.testing.assert_allclose(prepare(picture, as_json(how))[0], expected.numpy(), atol=1e-5)


def test_grey_networks_and_oblong_inputs_are_prepared_too() -> None:
    grey = Preprocessing(input_shape=(1, 32, 32), mean=(0.3,), std=(0.3,))
    expected = (timm_crop(a_picture(50, 40).convert("L"), grey).float() / 255 - 0.3) / 0.3
    np.testing.assert_allclose(prepare(a_picture(50, 40), as_json(grey))[0], expected.numpy(), atol=1e-5)
    oblong = Preprocessing(input_shape=(3, 24, 36), mean=PREPARATION.mean, std=PREPARATION.std, crop_pct=0.9)
    pixels = timm_crop(a_picture(90, 50), oblong).float() / 255
    expected = (pixels - torch.tensor(oblong.mean).view(-1, 1, 1)) / torch.tensor(oblong.std).view(-1, 1, 1)
    np.testing.assert_allclose(prepare(a_picture(90, 50), as_json(oblong))[0], expected.numpy(), atol=1e-5)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    ).eval()
    content = onnx_model(network, torch.zeros(1, 3, 24, 24))
    described = FORMAT.described(content, told_of(preprocessing=PREPARATION, class_names=("cat", "dog", "owl")))
    onnx.checker.check_model(onnx.load_from_string(described))
    folder = tmp_path_factory.mktemp("kit")
    (folder / "model.onnx").write_bytes(described)
    a_picture(40, 30).save(folder / "picture.png")
    for name, text in FORMAT.kit("model.onnx").items():
        (folder / name).write_text(text)
    return folder


def test_the_metadata_holds_classes_and_preparation(file) -> None:
    found = onnxruntime.InferenceSession(file / "model.onnx").get_modelmeta().custom_metadata_map
    assert json.loads(found["senseapp.classes"]) == ["cat", "dog", "owl"]
    assert json.loads(found["senseapp.preparation"]) == as_json(PREPARATION)


@pytest.mark.parametrize("runtime", first_of(["onnxruntime", "openvino"]))
def test_the_script_runs_without_senseapp_and_says_what_the_session_says(file, runtime) -> None:
    session = onnxruntime.InferenceSession(file / "model.onnx")
    images = prepare(Image.open(file / "picture.png"), as_json(PREPARATION))
    shares = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: images})[0]).softmax(1)[0]
    expected = sorted(zip(("cat", "dog", "owl"), shares.tolist(), strict=True), key=lambda pair: -pair[1])
    assert predict(str(file / "model.onnx"), str(file / "picture.png"), runtime) == [
        (name, pytest.approx(share, abs=1e-6)) for name, share in expected
    ]
    if runtime == "openvino":  # a process of its own would tell Intel that it runs
        return
    command = [sys.executable, "-I", "predict.py", "model.onnx", "picture.png"]
    printed = subprocess.run(command, cwd=file, capture_output=True, text=True, check=True, timeout=120).stdout
    assert printed.splitlines()[0].split()[-1] == expected[0][0]


def test_the_script_feeds_files_that_other_programs_wrote() -> None:
    images = np.arange(12, dtype=np.float32).reshape(1, 3, 2, 2) / 4
    np.testing.assert_array_equal(as_taken(images, ["N", 3, 2, 2], "tensor(float)"), images)
    found = as_taken(images, [2, 2, 2, 3], "tensor(uint8)")
    assert (found.shape, found.dtype) == ((2, 2, 2, 3), np.uint8)
    np.testing.assert_array_equal(found[1], images[0].transpose(1, 2, 0).round())


def test_the_script_takes_probabilities_as_they_are(tmp_path) -> None:
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Softmax(1)).eval()
    content = FORMAT.described(
        onnx_model(network, torch.zeros(1, 3, 24, 24)), told_of(preprocessing=PREPARATION, class_names=("a", "b", "c"))
    )
    (tmp_path / "model.onnx").write_bytes(content)
    a_picture(40, 30).save(tmp_path / "picture.png")
    images = prepare(Image.open(tmp_path / "picture.png"), as_json(PREPARATION))
    shares = torch.from_numpy(images.mean(axis=(2, 3))).softmax(1)[0].sort(descending=True).values
    found = predict(str(tmp_path / "model.onnx"), str(tmp_path / "picture.png"))
    assert [share for _, share in found] == pytest.approx(shares.tolist(), abs=1e-5)


@pytest.mark.parametrize("runtime", first_of(["onnxruntime", "openvino"]))
def test_the_script_tells_both_thresholds_of_a_detector(tmp_path, runtime) -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3, stride=8), nn.Flatten(2)).eval()
    content = onnx_model(network, torch.zeros(1, 3, 24, 24))
    described = FORMAT.described(
        content, told_of(preprocessing=PREPARATION, class_names=("cat",), thresholds=(0.25, 0.4375))
    )
    again = FORMAT.described(described, told_of(preprocessing=None, class_names=(), thresholds=(0.125, 0.4375)))
    onnx.checker.check_model(onnx.load_from_string(again))
    (tmp_path / "model.onnx").write_bytes(again)
    a_picture(40, 30).save(tmp_path / "picture.png")
    found = onnxruntime.InferenceSession(again).get_modelmeta().custom_metadata_map
    assert found["senseapp.score_threshold"] == "0.125"
    assert found["senseapp.original_score_threshold"] == "0.4375"
    assert json.loads(found["senseapp.classes"]) == ["cat"]
    with pytest.raises(SystemExit, match=r"from a score of 0\.125 on, those of the original from 0\.4375"):
        predict(str(tmp_path / "model.onnx"), str(tmp_path / "picture.png"), runtime)


@pytest.mark.parametrize("runtime", first_of(["onnxruntime", "openvino"]))
def test_the_notebook_is_one_that_jupyter_opens(runtime) -> None:
    notebook = json.loads(runtime_named(runtime).kit("model.onnx")["predict.ipynb"])
    assert f"install -q {runtime} " in notebook["cells"][1]["source"]
    assert notebook["cells"][2]["source"].count(f'"{runtime}")') == 1
    assert notebook["nbformat"] == 4
    assert [cell["cell_type"] for cell in notebook["cells"]] == ["markdown", "code", "code"]


def test_the_script_prints_names_without_control_characters(tmp_path) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 2, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    content = FORMAT.described(
        onnx_model(network, torch.zeros(1, 3, 24, 24)),
        told_of(preprocessing=PREPARATION, class_names=("cat\x1b]0;owned\x07", "dog\u202e\n")),
    )
    (tmp_path / "predict.py").write_text(FORMAT.kit("net.onnx")["predict.py"])
    (tmp_path / "net.onnx").write_bytes(content)
    a_picture(40, 40).save(tmp_path / "picture.png")
    command = [sys.executable, "predict.py", "net.onnx", "picture.png"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, text=True).stdout
    assert sorted(line.split(" %  ")[1] for line in said.splitlines()) == ["cat?]0;owned?", "dog??"]
