"""``compare`` and ``report`` on folders of analyze."""

import json
from dataclasses import replace

import pytest

from senseapp.cli.main import main
from senseapp.compressions import QuantizationConfig
from senseapp.records.spec import RunSpec, SensitivitySpec
from senseapp.store.run_folder import RunFolder
from tests.fake_session import LAYERS, a_measurement, a_result

ZEROS = RunSpec(sensitivity=SensitivitySpec(levels=(0.25, 0.5)))
BITS = RunSpec(sensitivity=SensitivitySpec(compression=QuantizationConfig(), levels=(8, 4)))


def save(path, spec=ZEROS, *, falling=False, names=LAYERS, estimates=False):
    """A run whose layers lose the more the later they come, or the less."""
    order = tuple(reversed(names)) if falling else names
    deltas = {name: 0.1 * (place + 1) for place, name in enumerate(order)}
    measured = [
        a_measurement(name, level, delta=level * deltas[name], removed_params=int(100 * (place + 1) * level))
        for place, name in enumerate(names)
        for level in spec.sensitivity.levels
    ]
    result = a_result(measured, spec=spec, names=names)
    if estimates:
        result = replace(result, estimates=tuple(replace(item, estimated=True) for item in measured))
    folder = RunFolder(path)
    folder.make()
    folder.save_result(result)
    return path


@pytest.fixture
def zeros(tmp_path):
    return save(tmp_path / "zeros", estimates=True)


@pytest.fixture
def bits(tmp_path):
    return save(tmp_path / "bits", BITS, falling=True, names=(*LAYERS, "extra"))


def test_two_runs_of_other_levels_are_compared(zeros, bits, capsys):
    assert main(["compare", str(zeros), str(bits), "--levels", "25,8", "--metric", "kl"]) == 0
    printed = capsys.readouterr().out
    assert "A · zeros, 25 %: Measured · 100 images · 95 % intervals" in printed
    assert "B · bits, 8 bits" in printed
    assert (
        "A and B rank 4 layers in the opposite order: −1.00, where 1 is the same order. 4 layers changed place"
        in printed
    )
    assert "4 layers matched by name · 1 without a value in A" in printed
    assert "Not matched (1 of 1):" in printed
    assert "The model has no layer of this name." in printed


def test_one_run_compares_its_estimate_with_its_measurement(zeros, capsys):
    assert main(["compare", str(zeros)]) == 0
    printed = capsys.readouterr().out
    assert "Estimate and measurement rank 4 layers almost alike: 1.00, where 1 is the same order." in printed
    assert printed.count("Measured · 100 images") == 1


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--levels", "30"], "was not run at level 0.3. It has 0.25, 0.5"),
        (["--levels", "25,8,4"], "takes one level, or one for each of 2 runs, got 3"),
        (["--levels", "half"], "must be numbers"),
        (["--metric", "sqnr"], "has no values of 'sqnr'"),
        (["--metric", "beauty"], "invalid choice"),
    ],
)
def test_what_cannot_be_compared_is_said_in_one_line(zeros, bits, capsys, options, complaint):
    assert main(["compare", str(zeros), str(bits), *options]) == 2
    told = capsys.readouterr().err
    assert complaint in told
    assert told.count("\n") == 1


def test_a_run_alone_without_estimates_asks_for_a_second(bits, capsys):
    assert main(["compare", str(bits)]) == 2
    assert "Name a second run" in capsys.readouterr().err


def test_a_folder_without_a_run_is_said(tmp_path, capsys):
    for command in (["compare", str(tmp_path)], ["report", str(tmp_path), "-o", str(tmp_path / "r.html")]):
        assert main(command) == 2
        assert "holds no run. Name the folder" in capsys.readouterr().err


def test_a_report_is_written_with_a_schedule_that_is_not_proven(zeros, tmp_path, capsys):
    schedule, out = tmp_path / "targets.json", tmp_path / "new" / "report.html"
    options = ("--budget", "params", "--target", "0.3", "--format", "json", "--out", str(schedule))
    assert main(["schedule", "--run", str(zeros), *options]) == 0
    assert main(["report", str(zeros), "--schedule", str(schedule), "-o", str(out)]) == 0
    assert capsys.readouterr().out.endswith(f"Wrote {out}\n")
    written = out.read_text()
    assert "<h1>" in written
    assert "30.0 % of the weights removed" in written
    assert json.loads(schedule.read_text())["layers"][0]["layer"] in written


def test_a_bad_schedule_is_refused_before_anything_is_written(zeros, tmp_path, capsys):
    out = tmp_path / "report.html"
    assert main(["report", str(zeros), "--schedule", str(tmp_path / "none.json"), "-o", str(out)]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert not out.exists()
