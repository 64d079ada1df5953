"""``apply`` on the demo, from ``analyze`` to a checkpoint that the architecture loads."""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from senseapp.cli.main import main
from senseapp.data.load import load_demo_images
from senseapp.networks.sources.demo import build_demo_network
from tests.few_digits import NUM_DIGITS
from tests.few_digits import few_digits as few_digits

pytestmark = pytest.mark.slow

SEEN = 64  # digits that the curves are measured on; the others judge
MEASURED = ("--layers", "layer[34]*", "--samples", str(SEEN), "--metric", "top1")


@pytest.fixture(scope="module")
def files(tmp_path_factory, few_digits):
    folder = tmp_path_factory.mktemp("apply")
    run, schedule = folder / "run", folder / "targets.json"
    options = ["--compression", "sparsity", "--levels", "50,80,95", *MEASURED]
    assert main(["analyze", "--model", "demo", "--data", "demo", *options, "--out", str(run)]) == 0
    budget = ["--budget", "params", "--target", "0.7", "--format", "json"]
    assert main(["schedule", "--run", str(run), *budget, "--out", str(schedule)]) == 0
    return folder


def apply(folder, *options, out="compressed.safetensors", schedule="targets.json"):
    arguments = ["--run", str(folder / "run"), "--schedule", str(folder / schedule)]
    return main(["apply", *arguments, *options, "--out", str(folder / out)])


def test_it_prints_one_json_line_that_the_checkpoint_bears_out(files, capsys):
    assert apply(files) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert printed.out.count("\n") == 1
    assert "Compressing all layers at once" in printed.err
    network = build_demo_network().eval()
    network.load_state_dict(safetensors.torch.load_file(files / "compressed.safetensors"), strict=True)
    images = load_demo_images()
    unseen = sorted(torch.randperm(NUM_DIGITS, generator=torch.Generator().manual_seed(0))[SEEN:].tolist())
    with torch.no_grad():
        right = (network(images.images[unseen]).argmax(1) == images.labels[unseen]).double().mean()
    assert report["after"] == pytest.approx(float(right))
    assert (report["metric"], report["images"], report["repaired"]) == ("top1", NUM_DIGITS - SEEN, None)
    assert (report["delivered"], report["reason"]) == ("compressed", "")
    assert report["before"] >= report["after"] >= report["uniform"] - 0.02
    zeros = sum(int((weight == 0).sum()) for name, weight in network.named_parameters() if weight.dim() > 1)
    assert report["sizes"]["zeros"] == [0, zeros]


def test_repair_is_measured_and_written(files, capsys):
    assert apply(files, "--repair", out="repaired.pth") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["repaired"] > report["after"]
    assert report["uniform_repaired"] is not None
    assert report["delivered"] == "repaired"
    assert "calibration images, each half with a fit to the other half" in report["reason"]
    build_demo_network().load_state_dict(torch.load(files / "repaired.pth", weights_only=True), strict=True)


def test_weights_that_do_not_keep_a_promise_are_not_written(files, capsys):
    assert apply(files, "--promise", "2", out="promised.safetensors") == 2
    complaint = capsys.readouterr().err
    assert "No file was written. It is not shown to lose at most 2 points, with 95 % certainty: 236 unseen" in complaint
    assert not (files / "promised.safetensors").exists()
    assert apply(files, "--repair", "--promise", "60", out="promised.safetensors") == 0
    report = json.loads(capsys.readouterr().out)
    weights = report["candidates"][0]
    assert report["before"] - report["repaired"] < weights["upper_bound"] <= 0.6
    assert weights["bound"].startswith("On new images: loss of right answers at most ")
    assert (files / "promised.safetensors").is_file()


@pytest.mark.wide
def test_the_strongest_schedule_within_a_drop_holds_what_it_promises(files, capsys):
    found = files / "strongest.json"
    asked = ["--budget", "params", "--max-drop", "2", "--repair", "--format", "json", "--out", str(found)]
    assert main(["schedule", "--run", str(files / "run"), "--lock", "layer3.0.conv1=0", *asked]) == 0
    assert "Measuring schedule 7 of at most 7" in capsys.readouterr().err
    rows = {row["layer"]: row for row in json.loads(found.read_text())["layers"]}
    assert (rows["layer3.0.conv1"]["level"], rows["layer3.0.conv1"]["locked"]) == (0, True)
    assert apply(files, "--repair", out="strongest.safetensors", schedule="strongest.json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["repaired"] >= report["before"] - 0.04  # on other images than those of the search
    assert report["sizes"]["zeros"][1] > 100_000


def test_zeros_and_bits_are_chosen_and_applied_together(files, tmp_path, capsys):
    bits, mixed = tmp_path / "bits", files / "mixed.json"
    options = ["--compression", "quantization", "--levels", "8,4,3", *MEASURED]
    assert main(["analyze", "--model", "demo", "--data", "demo", *options, "--out", str(bits)]) == 0
    budget = ["--budget", "bytes", "--target", "0.8", "--format", "json", "--out", str(mixed)]
    assert main(["schedule", "--run", str(files / "run"), "--run", str(bits), *budget]) == 0
    assert "bytes: 80." in capsys.readouterr().out
    rows = json.loads(mixed.read_text())["layers"]
    assert {row["compression"] for row in rows} >= {"sparsity", "quantization"}
    assert apply(files, "--run", str(bits), "--repair", schedule="mixed.json") == 0
    report = json.loads(capsys.readouterr().out)
    plain, small = report["files"]
    assert small.endswith(".int.safetensors.gz")
    assert report["file_bytes"] == {path: Path(path).stat().st_size for path in (plain, small)}
    assert report["file_bytes"][small] < 0.25 * report["file_bytes"][plain]
    assert report["sizes"]["file_bytes"] == [report["file_bytes"][plain]] * 2
    weights: dict[str, dict[str, torch.Tensor]] = {}
    exec(report["read_with"][small], weights)
    build_demo_network().load_state_dict(weights["weights"], strict=True)
    assert report["repaired"] > report["before"] - 0.05


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"out": "compressed.h5"}, "A checkpoint's name ends in"),
        ({"schedule": "missing.json"}, "cannot be read (No such file or directory)"),
        ({"schedule": "other.json"}, "do not exist in demo (stage.0)"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(files, capsys, options, sentence):
    rows = json.loads((files / "targets.json").read_text())
    rows["layers"] = [{**rows["layers"][0], "layer": "stage.0", "members": ["stage.0"]}]
    (files / "other.json").write_text(json.dumps(rows))
    before = {path.name for path in files.iterdir()}
    assert apply(files, **{"out": "new.pth", **options}) == 2
    complaint = capsys.readouterr().err
    assert sentence in complaint
    assert complaint.count("\n") == 1
    assert {path.name for path in files.iterdir()} == before


@pytest.mark.wide
@pytest.mark.slow
def test_a_pruning_schedule_truly_meets_its_budget(few_digits, tmp_path, capsys):
    run, schedule, out = tmp_path / "run", tmp_path / "ratios.json", tmp_path / "pruned.safetensors"
    options = ["--compression", "pruning", "--levels", "25,50", "--samples", str(SEEN)]
    assert main(["analyze", "--model", "demo", "--data", "demo", *options, "--out", str(run)]) == 0
    budget = ["--budget", "macs", "--target", "0.3", "--format", "json", "--out", str(schedule)]
    assert main(["schedule", "--run", str(run), *budget]) == 0
    assert "is estimated" not in capsys.readouterr().out
    written = json.loads(schedule.read_text())
    assert written["budget"] == {"kind": "macs", "target": 0.3}
    assert main(["apply", "--run", str(run), "--schedule", str(schedule), "--out", str(out)]) == 0
    report = json.loads(capsys.readouterr().out)
    before, after = report["sizes"]["macs"]
    assert 0.3 <= 1 - after / before < 0.36
    assert written["achieved"]["macs"] == pytest.approx(1 - after / before)
    assert [path.rpartition(".")[2] for path in report["files"]] == ["safetensors", "pt2", "onnx"]


@pytest.mark.wide
def test_a_recommendation_is_proven_and_its_files_are_what_it_says(files, capsys):
    out, schedule = files / "recommended.safetensors", files / "recommended.json"
    arguments = ["--run", str(files / "run"), "--max-drop", "2", "--schedule", str(schedule), "--out", str(out)]
    assert main(["recommend", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["proven"].startswith("You can remove ")
    assert found["headline"] == found["recommended"]["headline"]
    assert (found["allowed"], found["images"]) == (0.02, NUM_DIGITS - SEEN)
    assert found["delta"] <= 0.02
    dense, network = build_demo_network(), build_demo_network()
    network.load_state_dict(safetensors.torch.load_file(out), strict=True)
    layers = [name for name, weight in dense.named_parameters() if weight.dim() > 1]
    zeros = sum(int((network.get_parameter(name) == 0).sum()) for name in layers)
    total = sum(dense.get_parameter(name).numel() for name in layers)
    assert zeros / total == pytest.approx(found["saved"], abs=0.01)
    assert json.loads(schedule.read_text())
    assert found["files"][0] == str(out)


@pytest.mark.wide
def test_a_promise_is_kept_by_what_is_recommended(files, capsys):
    out, schedule = files / "sure.safetensors", files / "sure.json"
    arguments = ["--run", str(files / "run"), "--schedule", str(schedule), "--out", str(out)]
    assert main(["recommend", *arguments, "--promise", "4", "--best", str(files / "sure")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["allowed"] == 0.04
    kept = [each["upper_bound"] for each in found["promise"]["files"].values() if each["kept"]]
    assert max(kept) <= 0.04
    assert found["promise"]["missing"] == ""
    assert found["recommended"]["upper_bound"] <= 0.04
    assert all(each["upper_bound"] <= 0.04 for each in found["candidates"])
    assert main(["recommend", *arguments, "--promise", "0.5"]) == 2
    assert "takes at least" in capsys.readouterr().err
