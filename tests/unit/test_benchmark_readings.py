"""The benchmark of readings: files and labels of untrained networks, right figures, verdicts, and boxes that move."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from benchmarks.readings import __main__ as readings
from benchmarks.readings import cases, figures
from benchmarks.readings.cases import CASES, Case
from benchmarks.readings.networks import Classifier, Detector, Preparation, Segmenter

BUILDS = {"detection": Detector, "segmentation": lambda: Segmenter(6), "classification": lambda: Classifier(5)}


@pytest.fixture(autouse=True)
def _untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "trained", lambda task, _folder: BUILDS[task]())
    monkeypatch.setattr(readings, "PICTURES", 2)


@pytest.mark.parametrize("name", ["yolo8-seg told", "pair, first is background", "argmax as float", "answers last"])
def test_a_file_computes_what_its_network_does(tmp_path: Path, name: str) -> None:
    case = next(each for each in CASES if each.name == name)
    readings.write_case(case, tmp_path, tmp_path)  # fails where onnxruntime and torch differ
    assert 0 <= json.loads((tmp_path / "right.json").read_text())["right"] <= 1


def test_perfect_boxes_have_an_average_precision_of_one() -> None:
    case = Case(name="any", size=(160, 96), side=96, preparation=Preparation(letterbox=True))
    boxes = np.array([[1, 20, 10, 60, 50], [3, 90, 30, 150, 90]], float)
    scene = (np.zeros((96, 160, 3), np.uint8), boxes, np.zeros((96, 160), np.uint8))
    found = torch.from_numpy(boxes[:, 1:] * 0.6 + [0, 19, 0, 19]).float()[None]
    logits = torch.full((1, 2, 5), -20.0)
    logits[0, [0, 1], [1, 3]] = 5.0
    assert figures._average_precision(case, (found, logits, torch.zeros(1, 2, 33)), [scene]) == pytest.approx(1)
    other = (found + 30, logits, torch.zeros(1, 2, 33))
    assert figures._average_precision(case, other, [scene]) < 0.3


@pytest.mark.parametrize("name", readings.MOVED[::2])
def test_only_the_boxes_move(tmp_path: Path, name: str) -> None:
    case = next(each for each in CASES if each.name == name)
    folder = tmp_path / readings.slug(name)
    readings.write_case(replace(case, live=case.live[:2]), folder, tmp_path)
    images = {"images": np.random.default_rng(0).random((1, 3, 96, 96), np.float32)}
    before, after = (
        onnxruntime.InferenceSession(path).run(None, images)
        for path in (folder / "model.onnx", readings.moved(folder / "model.onnx", folder / "moved.onnx"))
    )
    moves = [np.round(one - other, 4) for one, other in zip(after, before, strict=True)]
    assert sum(move.any() for move in moves) == 1
    moved = next(move for move in moves if move.any())[0]
    columns = moved if moved.shape[0] < moved.shape[1] else moved.T
    assert np.ptp(columns, axis=1).max() < 1e-3
    assert set(np.flatnonzero(columns.mean(1)).tolist()) in ({0}, {0, 2})


def test_verdicts() -> None:
    assert readings.judged(0.71, 0.7, "") == "right"
    assert readings.judged(0.6, 0.7, "") == "wrong"
    assert readings.judged(None, 0.7, "") == "wrong"
    assert readings.judged(None, 0.7, "Which of both is it? Say --reading FILE.") == "asked"
    assert readings.judged(None, 0.7, "No output of the file is one of detection.") == "false"
