"""Arguments about runs: a folder or an id of the app, points of loss, and settings that the goal chooses."""

import argparse
import math

import pytest

from senseapp.cli import analyze
from senseapp.cli.run_arguments import loss_from, run_folder, run_spec_from, runtime_name
from senseapp.compressions import PruningConfig, QuantizationConfig, SparsityConfig
from senseapp.core.errors import InvalidSpec
from senseapp.descriptions.runtimes import RuntimeDescription

QUANTIZED_INPUT = QuantizationConfig(activations=True, observer="minmax")


def test_a_run_is_named_by_its_folder_or_by_its_id_in_the_app(tmp_path, monkeypatch):
    monkeypatch.setenv("SENSEAPP_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    run_id = "0123456789abcdef" * 2
    assert str(run_folder(run_id)) == run_id  # none of the app: said to be missing under the name that was typed
    kept = tmp_path / "home" / "runs" / run_id
    kept.mkdir(parents=True)
    assert run_folder(run_id) == kept
    assert str(run_folder("runs/demo")) == "runs/demo"
    assert str(run_folder("../" + run_id)) == "../" + run_id
    (tmp_path / run_id).mkdir()
    assert str(run_folder(run_id)) == run_id  # a folder of that name comes first


@pytest.mark.parametrize(
    ("number", "metric", "loss"),
    [(1.0, "top1", 0.01), (0.0, "top1", 0.0), (100.0, "agreement", 1.0), (0.05, "kl", 0.05), (3.0, "loss", 3.0)],
)
def test_points_are_hundredths_of_answers_and_nats_stay(number, metric, loss, capsys):
    assert loss_from(number, metric, flag="--max-drop") == pytest.approx(loss)
    assert capsys.readouterr().err == ""


def test_a_value_that_looks_like_a_fraction_is_said_to_be_points(capsys):
    assert loss_from(0.01, "top1", flag="--max-drop") == pytest.approx(0.0001)
    said = capsys.readouterr().err
    assert "--max-drop is in points: 0.01 allows 0.01 of 100 answers. If 1 of 100 are meant, give 1." in said


@pytest.mark.parametrize(
    ("number", "metric"), [(-1.0, "top1"), (100.1, "agreement"), (math.nan, "kl"), (-0.1, "kl"), (math.inf, "kl")]
)
def test_what_cannot_be_a_loss_is_refused_with_the_unit(number, metric):
    with pytest.raises(InvalidSpec, match=r"--max-drop is in (points, from 0 to 100|nats); got"):
        loss_from(number, metric, flag="--max-drop")


@pytest.mark.parametrize(
    ("given", "goal", "compression", "levels", "metric"),
    [
        ("", "smaller", QuantizationConfig(), (2, 4, 8), None),
        ("--goal faster", "faster", QuantizationConfig(activations=True), (8,), None),
        ("--goal targets", "targets", SparsityConfig(), (0.25, 0.5, 0.75), "kl"),
        ("--goal targets --metric top1 --levels 30", "targets", SparsityConfig(), (0.3,), "top1"),
        ("--goal smaller --compression pruning", "smaller", PruningConfig(), (0.1, 0.3, 0.5), None),
        ("--goal faster --observer minmax --levels 8", "faster", QUANTIZED_INPUT, (8,), None),
    ],
)
def test_the_goal_chooses_what_is_not_given(given, goal, compression, levels, metric):
    parser = argparse.ArgumentParser()
    analyze.add_arguments(parser)
    arguments = parser.parse_args([*["--model", "demo", "--data", "demo", "--out", "runs"], *given.split()])
    spec = run_spec_from(argparse.Namespace(**(vars(arguments) | {"model": "demo"})))
    found = spec.sensitivity
    assert (spec.goal, found.compression, tuple(sorted(found.levels)), found.metric) == (
        goal,
        compression,
        levels,
        metric,
    )


def test_the_target_chooses_the_runtime_unless_one_is_named(capsys, monkeypatch):
    parser = argparse.ArgumentParser()
    analyze.add_arguments(parser)
    base = ["--model", "demo", "--data", "demo", "--out", "runs", "--target"]
    spec = run_spec_from(argparse.Namespace(**(vars(parser.parse_args([*base, "intel"])) | {"model": "demo"})))
    assert spec.target == "intel"
    assert runtime_name(argparse.Namespace(runtime=None), spec) == "openvino"
    assert runtime_name(argparse.Namespace(runtime="onnxruntime"), spec) == "onnxruntime"
    monkeypatch.setattr(RuntimeDescription, "is_installed", False)
    with pytest.raises(SystemExit):
        parser.parse_args([*base, "phone"])
    assert "LiteRT is not installed here. To add it: pip install" in capsys.readouterr().err
