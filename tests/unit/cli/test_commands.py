import json
import re
import subprocess
import sys
import zipfile

import pytest

from senseapp.cli import models
from senseapp.cli.main import COMMANDS, main
from senseapp.cli.schedule import _report
from senseapp.compressions import QuantizationConfig
from senseapp.records.schedule import Schedule, ScheduleEntry
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.store.run_folder import RunFolder
from tests.fake_session import LAYERS, a_measurement, a_result

LEVELS = (0.25, 0.5, 0.75)


@pytest.fixture
def run_folder(tmp_path):
    return save(tmp_path / "run", RunSpec(sensitivity=SensitivitySpec(levels=LEVELS)), LEVELS)


def save(path, spec, levels):
    folder = RunFolder(path)
    folder.make()
    measurements = [
        a_measurement(layer, level, delta=level * (order + 1) / 10, removed_params=int(100 * (order + 1) * level))
        for order, layer in enumerate(LAYERS)
        for level in levels
    ]
    folder.save_result(a_result(measurements, spec=spec))
    return path


def schedule(run_folder, *options, out):
    return main(["schedule", "--run", str(run_folder), *options, "--out", str(out)])


def test_a_schedule_is_written_and_its_figures_printed(run_folder, tmp_path, capsys):
    out = tmp_path / "new" / "targets.json"
    options = ("--budget", "params", "--target", "0.5", "--format", "json")
    assert schedule(run_folder, *options, out=out) == 0
    written = json.loads(out.read_text())
    assert written["achieved"]["params"] >= 0.5 - 1e-9
    assert [row["layer"] for row in written["layers"]] == list(LAYERS)
    printed = capsys.readouterr().out
    assert re.search(r"Predicted, before it is measured: harm [\d.]+\.", printed)
    assert f"params: {100 * written['achieved']['params']:.1f} % removed" in printed
    assert f"Wrote {out}" in printed


def test_limits_are_percent(run_folder, tmp_path):
    out = tmp_path / "targets.json"
    options = ("--method", "gamma", "--gamma", "2", "--min", "40", "--max", "60")
    assert schedule(run_folder, *options, "--budget", "params", "--target", "0.5", "--format", "json", out=out) == 0
    levels = [row["level"] for row in json.loads(out.read_text())["layers"]]
    assert min(levels) >= 40
    assert max(levels) <= 60


def test_bits(tmp_path):
    spec = RunSpec(sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(8, 4, 2)))
    folder, out = save(tmp_path / "run", spec, (8.0, 4.0, 2.0)), tmp_path / "bits.csv"
    options = ("--budget", "bits", "--target", "6", "--max", "8", "--format", "csv")
    assert schedule(folder, *options, out=out) == 0
    assert "bits" in out.read_text()


def test_the_lines_that_apply_a_file_are_printed(run_folder, tmp_path, capsys):
    out = tmp_path / "recipe.yaml"
    assert schedule(run_folder, "--budget", "params", "--target", "0.5", "--format", "distiller", out=out) == 0
    printed = capsys.readouterr().out
    assert f'distiller.file_config(model, optimizer, "{out}")' in printed
    assert printed.splitlines()[-1] == f"Wrote {out}"
    assert out.read_text().startswith("# Each weight stands under every name")


def test_every_format_in_one_zip(run_folder, tmp_path):
    out = tmp_path / "all.zip"
    assert schedule(run_folder, "--budget", "params", "--target", "0.5", "--format", "zip", out=out) == 0
    with zipfile.ZipFile(out) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    assert {"schedule.json", "schedule.csv", "schedule.yaml", "manifest.json", "README.txt"} <= set(files)
    assert "(left out) schedule.model-explorer.json" in files["README.txt"].decode()  # the layers are made up
    alone = tmp_path / "alone.json"
    assert schedule(run_folder, "--budget", "params", "--target", "0.5", "--format", "json", out=alone) == 0
    assert files["schedule.json"] == alone.read_bytes()


def test_an_overlay_for_layers_that_the_network_lacks_is_refused(run_folder, tmp_path, capsys):
    out = tmp_path / "overlay.json"
    options = ("--budget", "params", "--target", "0.5", "--format", "model-explorer")
    assert schedule(run_folder, *options, out=out) == 2
    assert "has no node" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"--target": "1.0"}, "from 0 to below 1, got 1.0"),
        ({"--target": "0.99"}, "nearest"),
        ({"--budget": "ms", "--method": "gamma"}, "--budget ms chooses levels of one run for a --target"),
        ({"--budget": "wishes"}, "budget must be one of params, bytes, macs, bits"),
        ({"--min": "80", "--max": "20"}, "minimum"),
        ({"--run": "missing"}, "missing is not there. Name the folder that analyze or import wrote"),
        ({"--lock": "ghost=50"}, "ghost has no usable measurement, so its level cannot be fixed"),
        ({"--lock": f"{LAYERS[0]}=120"}, "must be above 0 % and below 100 %, or 0 for none; got 120 %"),
        ({"--lock": f"{LAYERS[-1]}=0", "--max": "50", "--target": "0.5"}, "limits and fixed layers"),
        ({"--max-drop": "0.1"}, "not allowed with argument"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(run_folder, tmp_path, capsys, changes, said):
    options = {"--run": str(run_folder), "--budget": "params", "--target": "0.5", "--format": "json"} | changes
    out = tmp_path / "targets.json"
    assert main(["schedule", *(word for pair in options.items() for word in pair), "--out", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not out.exists()


def test_levels_are_told_by_compression(capsys):
    """A schedule of two compressions may leave one of them out."""

    def entry(layer, compression, level):
        return ScheduleEntry(layer=layer, members=(layer,), compression=compression, level=level)

    bits = (entry("stem", "quantization", 8.0), entry("head", "quantization", 4.0), entry("last", "none", 0.0))
    zeros = (entry("stem", "sparsity", 0.5), entry("tail", "sparsity", 0.5))
    for entries in (bits, (*zeros, *bits), bits[2:]):
        _report(Schedule(model="m", method="optimal", entries=entries, metric="kl"))
    assert [line for line in capsys.readouterr().out.splitlines() if "compressed" in line] == [
        "2 layers or groups compressed; quantization of 4 to 8 bits in 2.",
        "3 layers or groups compressed; sparsity of 50 % in 2; quantization of 4 to 8 bits in 2.",
        "0 layers or groups compressed.",
    ]


def test_models_lists_what_is_searched_for(capsys):
    assert main(["models", "--search", "vit_tiny", "--library", "timm"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["model", "params", "MACs", "input", "layers", "weights"]
    assert "timm/vit_tiny_patch16_224" in {row.split()[0] for row in rows}
    assert all(row.startswith("timm/") for row in rows)


def test_models_says_when_nothing_matches(capsys):
    assert main(["models", "--search", "no such thing"]) == 0
    assert capsys.readouterr().out == "No architecture matches 'no such thing'.\n"


@pytest.mark.parametrize("command", [[], *([command] for command in COMMANDS)])
def test_help(command, capsys):
    with pytest.raises(SystemExit) as leaving:
        main([*command, "--help"])
    assert leaving.value.code == 0
    assert "usage: python -m senseapp" in capsys.readouterr().out


@pytest.mark.slow
def test_the_process_ends_with_the_status():
    def ends(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "senseapp", *arguments], capture_output=True, text=True, check=False
        )

    bad = ends(
        "analyze", "--model", "demo", "--data", "demo", "--compression", "sparsity", "--levels", "0", "--out", "x"
    )
    assert (bad.returncode, bad.stdout, len(bad.stderr.splitlines())) == (2, "", 1)
    assert ends("models", "--search", "vit_tiny").returncode == 0


def test_a_reader_that_stops_early_is_no_error():
    command = f"{sys.executable} -m senseapp models | head -n 1"
    finished = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert finished.stderr == ""
    assert finished.stdout.startswith("model")


def test_control_characters_do_not_reach_a_terminal(monkeypatch, capsys):
    def run(arguments):
        sys.stdout.write("layer\x1b[2J\u202e\té\n")
        sys.stderr.write("step\r")

    monkeypatch.setattr(models, "run", run)
    assert main(["models"]) == 0
    said = capsys.readouterr()
    assert said.out == "layer\ufffd[2J\ufffd\té\n"
    assert said.err == "step\r"
