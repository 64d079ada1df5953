"""``check`` on the command line: exit status, files that it writes, and one line for bad input."""

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
import safetensors.torch
import torch

from senseapp.cli.main import main
from tests.check_pairs import PAIRS, Workshop
from tests.onnx_graphs import file_of, node

DATA = ("--data", "demo", "--mean", ".304", "--std", ".323", "--samples", "160")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A reference, one with other names inside, and one whose classes are reversed."""
    shop = Workshop(tmp_path_factory.mktemp("files"))
    found = {"reference": shop.reference}
    for name, pair in (("good", "other names inside"), ("bad", "classes reversed")):
        made = next(each for each in PAIRS if each.name == pair).make(shop)
        assert isinstance(made, onnx.ModelProto)
        found[name] = shop.folder / f"{name}.onnx"
        onnx.save(made, found[name])
    return found


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process would load torch for each test."""
    monkeypatch.setenv("SENSEAPP_JOB_PROCESSES", "0")


def check(files: dict[str, Path], candidate: str, *options: str) -> int:
    return main(["check", str(files["reference"]), str(files[candidate]), *DATA, *options])


def test_a_candidate_that_holds_exits_with_0_and_says_why(files, capsys) -> None:
    assert check(files, "good", "--max-drop", "3") == 0
    said = capsys.readouterr().out
    assert said.startswith("Holds: Loss of right answers: 0 points on 160 images")
    assert "Bound: loss of right answers at most 1.9 points with 95 % certainty" in said
    assert "on new images like these, for this file alone (" in said
    assert "Inside: No tensor of 23 differs" in said


def test_one_that_fails_exits_with_1_and_writes_what_a_merge_request_needs(files, tmp_path, capsys) -> None:
    page, junit, summary = (tmp_path / "new" / name for name in ("check.html", "check.xml", "check.md"))
    written = ("--out", str(page), "--out", str(junit), "--out", str(summary))
    assert check(files, "bad", "--max-drop", "3", "--format", "json", *written) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["holds"], found["metric"], found["images"]) == (False, "top1", 160)
    assert "another order" in found["findings"][0]
    assert found["parts_at"] == "scores"
    suite = ElementTree.parse(junit).getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    failed = [case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None]
    assert failed == ["Loss"]
    assert summary.read_text("utf-8").startswith("## Fails: bad.onnx against reference.onnx")
    text = page.read_text("utf-8")
    assert "<script" not in text
    assert "Its classes probably come in another order" in text
    assert text.count("data:image/png") == 12
    assert str(files["bad"].parent) not in text + summary.read_text("utf-8") + junit.read_text("utf-8")


def test_too_few_images_and_too_long_times_exit_with_1(files, capsys) -> None:
    assert check(files, "good", "--max-drop", "1") == 1
    assert capsys.readouterr().out.startswith("Not shown to hold: Loss of right answers: 0 points on 160 images")
    assert check(files, "good", "--max-drop", "3", "--max-time", "0.01") == 1
    assert "the limit is 0.01" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("candidate", "options", "sentence"),
    [
        ("gone.onnx", (), "There is no file at"),
        ("in parts", (), "The weights in in parts are in several parts (model-00001-of-00002.safetensors, model-00002"),
        ("in parts/model-00001-of-00002.safetensors", (), "is part 1 of 2 of a checkpoint (a shard)"),
        ("text.onnx", (), "text.onnx cannot be checked: The file is text, not an ONNX model"),
        ("good", ("--max-drop", "101"), "--max-drop is in points, from 0 to 100; got 101."),
        ("good", ("--metric", "speed"), "speed"),
        ("good", ("--onnx-output", "nothing"), "The file has no output “nothing”. Its outputs are scores."),
    ],
)
def test_bad_input_exits_with_2_and_one_line(files, tmp_path, candidate, options, sentence, capsys) -> None:
    (tmp_path / "text.onnx").write_text("no network")
    for folder in ("in parts", "empty"):
        (tmp_path / folder).mkdir()
    for part in (1, 2):
        name = f"model-{part:05}-of-00002.safetensors"
        safetensors.torch.save_file({f"conv{part}.weight": torch.ones(4, 3, 3, 3)}, tmp_path / "in parts" / name)
    (tmp_path / "in parts" / "pytorch_model.bin.index.json").write_text('{"weight_map": {}}')
    path = files.get(candidate, tmp_path / candidate)
    reference = files["reference"] if path.suffix == ".onnx" else path  # an ONNX file names no architecture
    assert main(["check", str(reference), str(path), *DATA, *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("senseapp: ")
    assert sentence in line


@pytest.mark.wide
@pytest.mark.slow
def test_a_hostile_file_takes_the_memory_that_it_may_in_a_process_of_its_own(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("SENSEAPP_JOB_PROCESSES", "1")
    monkeypatch.chdir(tmp_path)
    content = file_of(
        [node("Expand", "x s", "e"), node("GlobalAveragePool", "e", "y")],
        {"s": np.array([1, 1, 50_000, 50_000])},
        shape=("N", 1, 1, 1),
    )
    assert len(content) < 1000
    Path("hostile.onnx").write_bytes(content)
    Path("plain.onnx").write_bytes(file_of([node("GlobalAveragePool", "x", "y")], {}, shape=("N", 1, 1, 1)))
    assert main(["check", "hostile.onnx", "hostile.onnx", "--data", "random", "--samples", "2"]) == 2
    assert "more than fit in memory" in capsys.readouterr().err  # what is read as a network is refused before it runs
    assert main(["check", "plain.onnx", "hostile.onnx", "--data", "random", "--samples", "2"]) == 2
    assert "more than the 1.2 GB of memory that a file of its size may take" in capsys.readouterr().err


@pytest.mark.wide
def test_a_report_comes_back_from_another_process(files, monkeypatch, capsys) -> None:
    found = []
    for processes in ("0", "1"):
        monkeypatch.setenv("SENSEAPP_JOB_PROCESSES", processes)
        assert check(files, "good", "--max-drop", "3", "--format", "json") == 0
        found.append(json.loads(capsys.readouterr().out))
    for name in ("holds", "loss", "loss_upper", "images", "metric"):
        assert found[0][name] == found[1][name]
