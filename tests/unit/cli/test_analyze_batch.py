"""``analyze`` for many models."""

from __future__ import annotations

import argparse
import csv
import re
from pathlib import Path

import pytest

from senseapp.cli.analyze import BatchItem, batch_of, run_batch
from senseapp.cli.main import main
from senseapp.core.errors import ClusterFailed, InvalidInput, InvalidSpec, UnknownModel
from senseapp.records.measurement import RunResult
from tests.fake_session import LAYERS, a_measurement, a_result

SETTINGS = ["--data", "demo", "--compression", "sparsity", "--levels", "50"]


def arguments(out: Path, *models: str, checkpoint: str | None = None) -> argparse.Namespace:
    return argparse.Namespace(model=list(models), checkpoint=checkpoint, out=out)


def test_one_model_has_the_folder_for_itself(tmp_path: Path) -> None:
    assert batch_of(arguments(tmp_path, "demo", checkpoint="w.pth")) == (BatchItem(model="demo", folder=tmp_path),)


def test_several_models_have_folders_inside(tmp_path: Path) -> None:
    found = batch_of(arguments(tmp_path, "demo", "timm/resnet18", "../../etc/passwd", ".."))
    assert [item.folder.name for item in found] == ["demo", "timm-resnet18", "etc-passwd", "model"]
    assert all(item.folder.parent == tmp_path for item in found)


@pytest.mark.parametrize(
    ("models", "checkpoint", "words"),
    [
        (("demo", "demo"), None, "may be given once, got demo, demo"),
        (("demo", "timm/resnet18"), "w.pth", "--checkpoint belongs to one model"),
    ],
)
def test_bad_lists_are_refused(models: tuple[str, ...], checkpoint: str | None, words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=re.escape(words)):
        batch_of(arguments(tmp_path, *models, checkpoint=checkpoint))


def items(out: Path, *names: str) -> list[BatchItem]:
    return [BatchItem(model=name, folder=out / name) for name in names]


def measured(item: BatchItem) -> RunResult:
    if item.model == "wrong":
        raise UnknownModel("There is no\nsuch model.")
    return a_result([a_measurement(layer, delta=0.001) for layer in LAYERS])


def test_a_model_that_fails_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidInput, match=r"1 of 3 models could not be measured \(wrong\)"):
        run_batch(items(tmp_path, "one", "wrong", "two"), measured, tmp_path)
    said = capsys.readouterr()
    assert "senseapp: wrong: There is no such model." in said.err
    assert [line.split()[0] for line in said.out.splitlines()] == ["one", "two"]
    with (tmp_path / "leaderboard.csv").open() as table:
        assert [row["run"] for row in csv.DictReader(table)] == ["one", "two"]


def test_a_lost_cluster_stops_the_batch_with_what_there_is(tmp_path: Path) -> None:
    def lost(item: BatchItem) -> RunResult:
        if item.model == "two":
            raise ClusterFailed("The cluster was lost.")
        return measured(item)

    with pytest.raises(ClusterFailed):
        run_batch(items(tmp_path, "one", "two", "three"), lost, tmp_path)
    assert len((tmp_path / "leaderboard.csv").read_text().splitlines()) == 2


def test_several_models_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["analyze", "--model", "demo", "--model", "nosuch/model", *SETTINGS, "--samples", "16", "--layers", "fc"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 2
    assert (tmp_path / "out" / "demo" / "result.json").is_file()
    assert "1 of 2 models could not be measured (nosuch-model)" in capsys.readouterr().err


def test_a_cluster_that_does_not_answer_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENSEAPP_RAY_ADDRESS", "127.0.0.1:1")
    command = ["analyze", "--model", "demo", *SETTINGS, "--samples", "8", "--layers", "fc", "--out", str(tmp_path)]
    assert main(command) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("senseapp: No Ray cluster answers at 127.0.0.1:1.")
