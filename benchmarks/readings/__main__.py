"""Are files and labels read right, or asked about? ``python -m benchmarks.readings [--only PART] [--cases FOLDER]``.

Each pair of :mod:`benchmarks.readings.cases` is opened as ``senseapp analyze`` opens it, with no flag but ``--task``
and ``--data``, and the figure of the uncompressed network on the labels is compared with the right one. A pair is
*right* within .02, *asked* where a sentence refuses it or asks (exit status 2), *false* where that sentence names a
false reason, else *wrong*; a note that the file was probably read wrongly is counted beside that. ``check`` gets each
file with itself, and files all of whose boxes are moved. Rows are kept in ``rows.jsonl``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import re
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper

from benchmarks.readings.cases import CASES, Case, network_of, write_model
from benchmarks.readings.figures import right_figure
from benchmarks.readings.labels import write_labels
from benchmarks.readings.networks import scene
from benchmarks.results import keep
from senseapp.cli.main import BAD_INPUT, build_parser
from senseapp.cli.main import main as senseapp
from senseapp.cli.run_arguments import run_spec_from
from senseapp.core.errors import SenseError
from senseapp.measure.accumulation import BaselineOutputs
from senseapp.measure.session import Session

ROWS = Path(__file__).with_name("rows.jsonl")
NEAR, PICTURES = 0.02, 32
_LONGEST = 300  # letters of a sentence in a row
VERDICTS = ("right", "asked", "false", "wrong")
FIGURES = {"detection": "map", "segmentation": "miou", "classification": "top1"}
MOVED = ("yolo8 told, coco", "yolo8, coco", "shares", "pair, first is background", "pair, last is background",
         "pair, sigmoid", "corners")  # fmt: skip
_DOUBT = re.compile(r"probably|read wrongly|no object with a score|hardly|nothing of what")

_FALSE = re.compile(r"No output of the file is one of|coordinate outside of 0 to 1|a box has 5, a polygon")
"""Reasons that are true of no pair here."""


def slug(name: str) -> str:
    """Return a name of a folder."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def judged(figure: float | None, right: float, sentence: str) -> str:
    """Return the verdict; a refusal for a reason that is not true is wrong."""
    if sentence:
        return "false" if _FALSE.search(sentence) else "asked"
    return "right" if figure is not None and abs(figure - right) <= NEAR else "wrong"


def preparation_flags(case: Case) -> list[str]:
    """Return how a person would say the preparation, all but the fit."""
    how = case.preparation
    mean, std = (",".join(f"{value / how.scale:.6g}" for value in values) for values in (how.mean, how.std))
    return ["--mean", mean, "--std", std, *(["--preprocessing", "bgr"] if how.bgr else [])]


def figure_of(case: Case, folder: Path, flags: Sequence[str]) -> tuple[float | None, tuple[str, ...]]:
    """Return the uncompressed network's figure on the labels as ``analyze`` reads them, and the run's notes."""
    arguments = build_parser().parse_args([
        "analyze", "--model", "onnx", "--checkpoint", str(folder / "model.onnx"), "--data", str(folder / "data"),
        "--task", case.task, "--mode", "quick", "--samples", "32", "--compression", "sparsity", "--levels", "50",
        "--device", "cpu", "--out", str(folder / "run"), *flags,
    ])  # fmt: skip
    arguments.model = "onnx"  # of the batch that the command line takes
    session = Session.open(run_spec_from(arguments))
    session.sweep.complete_baseline()
    images, name = session.images, FIGURES[case.task]
    if images.labels is None:
        return None, session.notes
    values = BaselineOutputs(session.sweep.baseline.outputs, images.labels, (name,)).values()
    return values[name], session.notes


def row(case: Case, folder: Path, flags: Sequence[str]) -> dict[str, Any]:
    """Return what became of one pair."""
    right = json.loads((folder / "right.json").read_text())["right"]
    started, figure, notes, sentence, failure = time.perf_counter(), None, tuple[str, ...](), "", ""
    try:
        figure, notes = figure_of(case, folder, flags)
    except SenseError as error:
        sentence = " ".join(str(error).split())
    except Exception as error:  # what the benchmark is there to find
        failure = f"{type(error).__name__}: {error}"
        traceback.print_exc(limit=-3)
    status, checked, said = checked_pair(folder / "model.onnx", case, folder, flags)
    return {
        "name": case.name,
        "task": case.task,
        "right": round(right, 4),
        "figure": None if figure is None or math.isnan(figure) else round(figure, 4),
        "verdict": judged(figure, right, sentence),
        "doubted": any(_DOUBT.search(note) for note in notes),
        "sentence": (sentence or failure or " ".join(note for note in notes if _told(note)))[:_LONGEST],
        "check": judged(checked, right, said if status == BAD_INPUT else ""),
        "check figure": checked,
        "check sentence": said[:_LONGEST],
        "seconds": round(time.perf_counter() - started, 1),
    }


def _told(note: str) -> bool:
    return not re.match(r"The exporter folded|\d+ weights? |\d+ pictures with", note)


def checked_pair(candidate: Path, case: Case, folder: Path, flags: Sequence[str]) -> tuple[int, float | None, str]:
    """Return exit status of ``check``, the candidate's figure, and the sentence on the loss or the refusal."""
    shown, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(told):
        status = senseapp([
            "check", str(folder / "model.onnx"), str(candidate), "--data", str(folder / "data"), "--task", case.task,
            "--format", "json", "--samples", "32", *flags,
        ])  # fmt: skip
    if status == BAD_INPUT:
        return status, None, told.getvalue().strip().splitlines()[-1]
    found = json.loads(shown.getvalue())
    figure = found["changes"].get(FIGURES[case.task], {}).get("value")  # of the candidate, here the same file
    return status, figure, found["headline"]


def moved(path: Path, to: Path) -> Path:
    """Write a copy whose boxes are all moved by a fifth of the picture to the right."""
    model = onnx.load(path)
    shape = [axis.dim_value for axis in model.graph.input[0].type.tensor_type.shape.dim]
    name = next(each.name for each in model.graph.output if each.name not in ("logits", "scores"))
    dims = [axis.dim_value for axis in next(each for each in model.graph.output if each.name == name).type.tensor_type
            .shape.dim]  # fmt: skip
    columns = dims[1] if dims[1] < dims[2] else dims[2]
    shares, corners = "pred" in name or name == "boxes", name == "boxes" or path.parent.name == "corners"
    by = torch.zeros(columns)
    by[[0, 2] if corners else [0]] = 0.2 if shares or path.parent.name == "shares" else 0.2 * shape[3]
    values = by[None, :, None] if dims[1] < dims[2] else by[None, None]
    for node in model.graph.node:
        node.output[:] = ["unmoved" if each == name else each for each in node.output]
    model.graph.initializer.append(numpy_helper.from_array(values.numpy(), "moved_by"))
    model.graph.node.append(helper.make_node("Add", ["unmoved", "moved_by"], [name], name="move"))
    onnx.save(model, to)
    return to


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        yield from map(json.loads, path.read_text().splitlines())


def counted(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, object]]:
    """Yield the numbers of pairs by verdict, for both commands, and what became of files with moved boxes."""
    pairs = [each for each in rows if "verdict" in each]
    for which, title in (("verdict", "analyze"), ("check", "check")):
        counts = Counter(each[which] for each in pairs)
        yield {"command": title, "pairs": len(pairs), **{name: counts[name] for name in VERDICTS}}
    refused = sum(each["moved"].startswith("exit status 1") for each in rows if "moved" in each)
    moved_pairs = sum("moved" in each for each in rows)
    yield {"command": "check, all boxes moved", "pairs": moved_pairs, "right": refused, "wrong": moved_pairs - refused}


def write_case(case: Case, folder: Path, networks: Path) -> None:
    """Write ``model.onnx``, ``data`` and ``right.json``, the figure that is right, into ``folder``."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(sum(map(ord, case.name)))
    alive = sorted(each for each in case.live if each is not None)
    scenes = [scene(generator, case.size, alive, 1 if case.task == "classification" else 4) for _ in range(PICTURES)]
    network, images = network_of(case, networks), case.preparation.images([each[0] for each in scenes], case.side)
    write_labels(case, scenes, folder / "data")
    write_model(network, case, images, folder / "model.onnx")
    (folder / "right.json").write_text(json.dumps({"right": right_figure(case, network, images, scenes)}))


def measured(case: Case, cases: Path, *, again: bool, prepared: bool) -> Iterator[dict[str, Any]]:
    """Yield the row of a case, and that of its copy with moved boxes."""
    folder = cases / slug(case.name)
    if again or not (folder / "right.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        write_case(case, folder, cases / "networks")
    flags = preparation_flags(case) if prepared else []
    yield row(case, folder, flags)
    if case.name in MOVED:
        status, _, said = checked_pair(moved(folder / "model.onnx", folder / "moved.onnx"), case, folder, flags)
        yield {"name": f"{case.name}, all boxes moved", "moved": f"exit status {status}. {said}"}


def main() -> None:
    """Judge every pair, keep the rows, and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[""], help="parts of names")
    parser.add_argument("--cases", type=Path, help="where cases are kept (default: a temporary folder)")
    parser.add_argument("--again", action="store_true", help="write cases that are there anew")
    parser.add_argument("--prepared", action="store_true", help="say mean, std and order of channels by flags")
    parser.add_argument("--rows", type=Path, default=ROWS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        cases, rows = asked.cases or Path(temporary), {each["name"]: each for each in _rows(asked.rows)}
        for case in CASES:
            if not any(part in case.name for part in asked.only):
                continue
            for found in measured(case, cases, again=asked.again, prepared=asked.prepared):
                rows[found["name"]] = found
                print(json.dumps(found, ensure_ascii=False), flush=True)
    asked.rows.write_text("".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in rows.values()))
    if asked.rows == ROWS:
        for line in counted(list(rows.values())):
            keep("readings", line)


if __name__ == "__main__":
    main()
