"""An imported table as a run of the app, and as a folder of the command line."""

import csv
import json

import pytest

from senseapp.cli.main import main
from senseapp.core.errors import InvalidFile, InvalidInput, InvalidSpec
from senseapp.records.jobs import RunState
from senseapp.records.spec import ModelSpec
from senseapp.store.run_folder import RunFolder
from tests.distiller_tables import ROWS, TABLE, table


def test_an_imported_table_is_a_finished_run(service):
    run_id = service.import_csv("resnet18", TABLE.encode(), granularity="filter")
    record = service.run(run_id)
    assert (record.title, record.state) == ("resnet18", RunState.DONE)
    assert record.headline.startswith("Most fragile: conv1")
    snapshot = service.snapshot(run_id)
    assert (snapshot.done, snapshot.total) == (6, 6)
    assert service.result(run_id).spec == record.spec
    service.resume(run_id)
    assert service.run(run_id).state is RunState.DONE


def test_the_model_that_was_measured_gives_sizes_and_types_to_the_run(service):
    model = ModelSpec(library="torchvision", name="resnet18")
    run_id = service.import_csv("resnet18", TABLE.encode(), model=model)
    profile = service.result(run_id).profile
    assert profile.layer("fc").layer_type == "Linear"
    assert profile.num_params == 11_689_512  # as torchvision documents it
    assert profile.layer("conv1").macs == 64 * 3 * 7 * 7 * 112 * 112
    assert service.run(run_id).origin == ""
    with pytest.raises(InvalidInput, match="None of the 3 parameters is in torchvision/alexnet"):
        service.import_csv("other", TABLE.encode(), model=ModelSpec(library="torchvision", name="alexnet"))
    assert len(service.runs()) == 1


def test_a_bad_table_or_title_leaves_no_run(service):
    with pytest.raises(InvalidFile):
        service.import_csv("bad", table(ROWS[0]).encode())
    with pytest.raises(InvalidSpec, match="title"):
        service.import_csv("x" * 300, TABLE.encode())
    assert service.runs() == ()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "resnet18_element.csv"
    path.write_text(TABLE)
    return path


def test_the_command_line_imports_and_schedules(file, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["import", str(file), "--model", "demo", "--out", str(tmp_path / "part")]) == 0
    assert "1 of the 3 parameters left out, as demo lacks them (conv1)" in capsys.readouterr().out
    assert main(["import", str(file), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "Most fragile: conv1" in printed
    assert "intervals are unknown" in printed
    assert RunFolder(out).load_result().profile.title == "resnet18_element"
    assert len(list(csv.DictReader((out / "sensitivity.csv").open()))) == 3 * 2 * 3
    assert set(json.loads((out / "targets.json").read_text())) == {"conv1", "layer1.0.conv1", "fc"}
    options = ["--budget", "params", "--target", "0.3", "--format", "json", "--out", str(tmp_path / "targets.json")]
    assert main(["schedule", "--run", str(out), *options]) == 0
    assert "counts alike" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "says"), [(b"\xff\xfe\x00", "not text in UTF-8"), (b"", "empty"), (None, "cannot be read")]
)
def test_bad_files_are_refused_in_one_line(tmp_path, capsys, content, says):
    path = tmp_path / "table.csv"
    if content is not None:
        path.write_bytes(content)
    assert main(["import", str(path), "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_finished_folder_is_not_written_over(file, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["import", str(file), "--out", str(out)]) == 0
    assert main(["import", str(file), "--out", str(out)]) == 2
    assert "finished run already" in capsys.readouterr().err
