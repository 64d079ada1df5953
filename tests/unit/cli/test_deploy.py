"""``deploy`` on the demo, from ``analyze`` to a file that onnxruntime runs."""

import json

import onnxruntime
import pytest
import torch

from senseapp.cli.main import main
from senseapp.data.load import load_demo_images
from senseapp.networks.sources.demo import load_demo_model
from senseapp.runtimes.call_times import saturates
from tests.few_digits import NUM_DIGITS
from tests.few_digits import few_digits as few_digits

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_times")]

SEEN = 64  # digits that the curves are measured on; the others judge


@pytest.fixture(scope="module")
def folder(tmp_path_factory, few_digits):
    folder = tmp_path_factory.mktemp("deploy")
    options = ["--compression", "quantization", "--levels", "8,4", "--layers", "layer4*", "--samples", str(SEEN)]
    assert main(["analyze", "--model", "demo", "--data", "demo", *options, "--out", str(folder / "run")]) == 0
    return folder


def deploy(folder, *options, out="quick.onnx"):
    return main(["deploy", "--run", str(folder / "run"), *options, "--out", str(folder / out)])


@pytest.mark.wide  # tests/reference/test_delivered_files.py counts the answers of such files, too
def test_the_file_does_what_the_line_says_and_keeps_a_promise_that_held_out_images_bear_out(folder, capsys):
    assert deploy(folder, "--format", "kit", "--promise", "agreement=5") == 0
    printed = capsys.readouterr().out
    report = json.loads(printed)
    assert printed.count("\n") == 1
    order = torch.randperm(NUM_DIGITS, generator=torch.Generator().manual_seed(0))
    unseen = load_demo_images().images[sorted(order[SEEN:].tolist())]
    session = onnxruntime.InferenceSession(folder / "quick.onnx", providers=["CPUExecutionProvider"])
    scores = session.run(None, {session.get_inputs()[0].name: unseen.numpy()})[0]
    with torch.no_grad():
        changed = float(
            (torch.from_numpy(scores).argmax(1) != load_demo_model().module(unseen).argmax(1)).double().mean()
        )
    file = report["file"]
    assert report["images"] == NUM_DIGITS - SEEN
    assert file["changes"]["agreement"]["delta"] == pytest.approx(changed, abs=1e-9)
    assert file["changes"]["agreement"]["ci_low"] <= changed <= file["changes"]["agreement"]["ci_high"]
    assert file["file_bytes"] == (folder / "quick.onnx").stat().st_size < 0.5 * report["original"]["file_bytes"]
    assert file["changes"]["kl"]["delta"] < 1e-3
    integers = report["integers"]
    assert (integers["products"], integers["macs"]) == (23, 5_451_392)  # of the demo's network, by torch's counter
    assert integers["share"] == 1 - sum(each["macs"] for each in integers["in_float"]) / integers["macs"] > 0.5
    (sentence,) = (note for note in report["notes"] if "of the multiplications are computed in integers" in note)
    assert sentence.startswith("100 %") == (not integers["in_float"])
    (alike,) = (note for note in report["notes"] if note.startswith("The answers are the same on processors with and"))
    assert alike.endswith(f"this one is {'without' if saturates() else 'with'} VNNI.")
    assert report["original"]["time_ratio"] == {"value": 1, "low": 1, "high": 1}
    assert all(report[name]["ms"]["low"] > 0 for name in ("original", "file", "int8", "default"))
    assert len((folder / "quick.README.txt").read_text().splitlines()) == 3
    names = ("quick.onnx", "quick.README.txt", "predict.py", "predict.ipynb")
    assert report["files"] == [str(folder / name) for name in names]
    compile((folder / "predict.py").read_text(), "predict.py", "exec")
    assert '"quick.onnx"' in json.loads((folder / "predict.ipynb").read_text())["cells"][-1]["source"]
    promise = report["promise"]
    assert [promise[name] for name in ("most", "metric", "certainty", "missing")] == [0.05, "agreement", 0.95, ""]
    bounds = [each["upper_bound"] for each in promise["files"].values() if each["kept"]]
    assert file["changes"]["agreement"]["delta"] < max(bounds) <= 0.05
    assert report["upper_bound"] > file["changes"]["top1"]["delta"]
    assert "with 95 % certainty" in report["bound"]


@pytest.mark.wide
def test_a_float_file_has_nothing_in_int8(folder, capsys):
    assert deploy(folder, "--mode", "float", out="float.onnx") == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) & {"file", "original", "int8", "default"} == {"file", "original"}
    assert report["file"]["changes"]["agreement"]["delta"] == 0


@pytest.mark.parametrize(
    ("options", "out", "message"),
    [
        ((), "quick.pth", "ends in .onnx"),
        (("--mode", "quickest"), "quick.onnx", "--mode is mixed, float, int8, or quickest=X"),
        (("--max-time", "0.5"), "quick.onnx", "at least 1 times that of all-int8"),
    ],
)
def test_bad_settings_are_one_sentence(options, out, message, folder, capsys):
    assert deploy(folder, *options, out=out) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--promise", "1"), "takes at least 315 unseen images. On the 236 unseen images of this run even a file"),
        (("--promise", "kl=1"), "kl has no largest value"),
        (("--promise", "few"), "--promise is a number of points"),
        (("--promise", "2@40"), "The certainty is from 0.75"),
    ],
)
def test_a_promise_that_cannot_be_kept_writes_nothing(folder, capsys, options, message):
    assert deploy(folder, "--mode", "float", *options, out="unkept.onnx") == 2
    assert message in capsys.readouterr().err
    assert not (folder / "unkept.onnx").exists()
