"""The command line with somebody's own weights and pictures, through the real engine."""

import pytest
import timm
import torch

from senseapp.cli.main import main
from senseapp.core.codec import loads
from senseapp.records.measurement import RunResult
from tests.pictures import class_files, write_zip

pytestmark = pytest.mark.slow

OWN = ("--preprocessing", "own")  # to have the images choose it takes seconds
SETTINGS = ("--compression", "sparsity", "--levels", "50", "--layers", "fc,conv1*")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    torch.manual_seed(0)
    network = timm.create_model("resnet10t", num_classes=3)
    path = tmp_path_factory.mktemp("weights") / "colleague.pth"
    averaged = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    averaged["fc.bias"] += 1
    torch.save({"state_dict": network.state_dict(), "state_dict_ema": averaged}, path)
    return path


def analyze(weights, data, out, *more):
    model = ("--model", "auto", "--checkpoint", str(weights))
    return main(["analyze", *model, "--data", str(data), *SETTINGS, *more, "--out", str(out)])


def result_in(out):
    return loads((out / "result.json").read_text(), RunResult)


def test_an_unknown_checkpoint_and_a_zip_of_class_folders(weights, tmp_path, capsys):
    data = write_zip(tmp_path / "photos.zip", {**class_files(each=2), "1/broken.png": b"no picture"})
    assert analyze(weights, data, tmp_path / "out", "--network", "ema", *OWN) == 0
    result = result_in(tmp_path / "out")
    assert result.has_labels
    assert result.num_samples == 6
    assert result.profile.num_classes == 3
    assert result.spec.model.network == "ema"
    assert {item.layer for item in result.measurements} == {"conv1.0", "conv1.3", "conv1.6", "fc"}
    printed = capsys.readouterr().out
    assert "Recognised as timm/resnet10t" in printed
    assert "1/broken.png" in printed
    assert "The file holds 2 networks" in printed
    assert "state_dict_ema are used" in printed


@pytest.mark.wide
def test_class_folders_can_be_measured_without_labels_and_a_table_can_be_named(weights, tmp_path):
    files = {**class_files(("cat", "dog"), each=2), "truth.csv": b"file,label\ncat/0.png,2\ndog/1.png,0\n"}
    data = write_zip(tmp_path / "photos.zip", files)
    assert analyze(weights, data, tmp_path / "without", "--labels", "none", *OWN) == 0
    assert (result_in(tmp_path / "without").has_labels, result_in(tmp_path / "without").num_samples) == (False, 4)
    assert analyze(weights, data, tmp_path / "table", "--labels", "truth.csv", *OWN) == 0
    assert (result_in(tmp_path / "table").has_labels, result_in(tmp_path / "table").num_samples) == (True, 2)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--model", "demo", "--data", "demo", "--labels", "none"), "--labels is for a folder or archive"),
        (("--model", "demo", "--data", "demo", "--network", "ema"), "Add --checkpoint FILE"),
    ],
)
def test_options_that_would_change_nothing_are_refused(arguments, sentence, tmp_path, capsys):
    assert main(["analyze", *arguments, *SETTINGS, "--out", str(tmp_path / "out")]) == 2
    assert sentence in capsys.readouterr().err


def test_folders_that_mean_no_class_say_what_to_do(weights, tmp_path, capsys):
    data = write_zip(tmp_path / "photos.zip", class_files(("cat", "dog"), each=2))
    assert analyze(weights, data, tmp_path / "out") == 2
    assert "measure without labels" in capsys.readouterr().err
