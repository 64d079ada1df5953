"""``analyze`` for many models."""

import argparse
import csv
import re
from pathlib import Path

import pytest

from senseapp.cli.analyze import batch_of, run_batch
from senseapp.cli.main import main
from senseapp.core.errors import ClusterFailed, InvalidInput, InvalidSpec, UnknownModel
from senseapp.records.measurement import RunResult
from tests.fake_session import LAYERS, a_measurement, a_result

SETTINGS = ["--data", "demo", "--compression", "sparsity", "--levels", "50"]


def arguments(out: Path, *models: str, listed: str | None = None, checkpoint: str | None = None) -> argparse.Namespace:
    if listed is not None:
        (out / "models.txt").write_text(listed)
    return argparse.Namespace(
        model=[*models, *([] if listed is None else [f"@{out / 'models.txt'}"])] or None, checkpoint=checkpoint, out=out
    )


def test_one_model_has_the_folder_for_itself(tmp_path: Path) -> None:
    (item,) = batch_of(arguments(tmp_path, "demo", checkpoint="w.pth"))
    assert (item.model, item.checkpoint, item.out) == ("demo", "w.pth", tmp_path)


def test_models_come_from_the_command_and_from_a_file(tmp_path: Path) -> None:
    listed = "# ours\n\ntimm/resnet18\ntimm/resnet18 , weights/my run.pth  # fine-tuned\n"
    found = batch_of(arguments(tmp_path, "demo", listed=listed))
    assert [(item.model, item.checkpoint, item.out.name) for item in found] == [
        ("demo", None, "demo"),
        ("timm/resnet18", None, "timm-resnet18"),
        ("timm/resnet18", "weights/my run.pth", "timm-resnet18-my-run"),
    ]
    assert all(item.out.parent == tmp_path for item in found)


def test_no_folder_lies_outside(tmp_path: Path) -> None:
    (item,) = batch_of(arguments(tmp_path, listed="../../etc/passwd"))
    assert item.out.parent == tmp_path
    (dots,) = batch_of(arguments(tmp_path, listed=".."))
    assert dots.out == tmp_path / "model"


@pytest.mark.parametrize(
    ("models", "listed", "checkpoint", "words"),
    [
        ((), None, None, "Say which model"),
        ((), "# nothing\n", None, "Say which model"),
        (("demo", "demo"), None, None, "demo comes more often"),
        (("demo", "timm/resnet18"), None, "w.pth", "--checkpoint belongs to one model"),
    ],
)
def test_bad_lists_are_refused(models, listed, checkpoint, words, tmp_path) -> None:
    with pytest.raises(InvalidSpec, match=re.escape(words)):
        batch_of(arguments(tmp_path, *models, listed=listed, checkpoint=checkpoint))


def test_a_list_that_is_no_text_is_refused(tmp_path: Path) -> None:
    for bad in (tmp_path / "missing.txt", tmp_path):
        with pytest.raises(InvalidSpec, match="cannot be read"):
            batch_of(argparse.Namespace(model=[f"@{bad}"], checkpoint=None, out=tmp_path))


def items(out: Path, *names: str) -> list[argparse.Namespace]:
    return [argparse.Namespace(model=name, checkpoint=None, out=out / name) for name in names]


def measured(item: argparse.Namespace) -> RunResult:
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
    def lost(item: argparse.Namespace) -> RunResult:
        if item.model == "two":
            raise ClusterFailed("The cluster was lost.")
        return measured(item)

    with pytest.raises(ClusterFailed):
        run_batch(items(tmp_path, "one", "two", "three"), lost, tmp_path)
    assert len((tmp_path / "leaderboard.csv").read_text().splitlines()) == 2


def test_several_models_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "models.txt").write_text("demo\nnosuch/model\n")
    command = ["analyze", "--model", f"@{tmp_path / 'models.txt'}", *SETTINGS, "--samples", "16", "--layers", "fc"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 2
    assert (tmp_path / "out" / "demo" / "result.json").is_file()
    assert "1 of 2 models could not be measured (nosuch-model)" in capsys.readouterr().err


def test_a_cluster_that_does_not_answer_is_one_line(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("SENSEAPP_RAY_ADDRESS", "127.0.0.1:1")
    command = ["analyze", "--model", "demo", *SETTINGS, "--samples", "8", "--layers", "fc", "--out", str(tmp_path)]
    assert main(command) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("senseapp: No Ray cluster answers at 127.0.0.1:1.")
