"""Sizes that the product says beside those of its files on the disk, and how small the small files are."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch

from benchmarks.real.network import ARCHITECTURE, write_checkpoint
from benchmarks.real.photographs import MADE_FROM, write_photographs
from benchmarks.real.rows import Row
from senseapp.cli.main import main
from senseapp.descriptions import BudgetKind
from senseapp.records.deployment import CHECKPOINT, model_file, small_form
from senseapp.records.schedule import ResourceBudget, ValidationResult
from senseapp.server.schedule_tasks import Verification
from senseapp.server.tasks import RunObserver, TaskContext
from senseapp.solve.methods import make_schedule
from senseapp.store.run_folder import RunFolder
from senseapp.views.words.wording import size_changes

_IMAGES = 12
_LEVELS = {"sparsity": "50,70,90", "quantization": "8,4,3", "pruning": "20,40"}
_UNITS = {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
_ROUNDING = 0.005  # of the three digits that people read


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One schedule, and the largest that its small file may be, as a share of the dense one."""

    title: str
    compression: str
    kind: BudgetKind
    target: float
    most: float | None = None


_CASES = (
    _Case(title="50 % zeros", compression="sparsity", kind="params", target=0.5, most=0.60),
    _Case(title="70 % zeros", compression="sparsity", kind="params", target=0.7, most=0.40),
    _Case(title="90 % zeros", compression="sparsity", kind="params", target=0.89, most=0.20),
    _Case(title="8 bits", compression="quantization", kind="bits", target=8, most=0.27),
    _Case(title="4 bits", compression="quantization", kind="bits", target=4, most=0.20),
    _Case(title="3 bits", compression="quantization", kind="bits", target=3, most=0.15),
    _Case(title="20 % of MACs pruned", compression="pruning", kind="macs", target=0.2),
)


def rows() -> Iterator[Row]:
    """Deliver a schedule of every kind, and compare what is said of its files with what lies on the disk."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        checkpoint = write_checkpoint(home / "network.safetensors")
        photographs = write_photographs(home / "photographs", _IMAGES, MADE_FROM)
        for compression, levels in _LEVELS.items():
            run = _analyze(home, compression, levels, checkpoint, photographs)
            cases = [case for case in _CASES if case.compression == compression]
            for case in cases:
                validation, files = _proven(case, run)
                yield from _page_rows(case, validation, files)
                yield from _small_rows(case, files, checkpoint)
            yield from _json_rows(cases[0], run)


def _analyze(home: Path, compression: str, levels: str, checkpoint: Path, photographs: Path) -> Path:
    run = home / compression
    what = ["--model", f"timm/{ARCHITECTURE}", "--checkpoint", str(checkpoint), "--data", str(photographs)]
    how = ["--compression", compression, "--levels", levels, "--mode", "quick", "--out", str(run)]
    with contextlib.redirect_stdout(io.StringIO()):
        if main(["analyze", *what, *how]):
            raise RuntimeError(f"The {compression} run failed.")
    return run


class _Silent(RunObserver):
    """Shows nothing."""


def _proven(case: _Case, run: Path) -> tuple[ValidationResult, tuple[Path, ...]]:
    """Return what the app keeps of a proof, and the files it offers."""
    folder = RunFolder(run)
    budget = ResourceBudget(kind=case.kind, target=case.target)
    asked = Verification(run_id="run", schedule=make_schedule(folder.load_result(), budget=budget), repair=False)
    return asked.carry_out(TaskContext(folder=folder, observer=_Silent())), asked.files(folder)


def _page_rows(case: _Case, validation: ValidationResult, files: tuple[Path, ...]) -> Iterator[Row]:
    """Compare the words on the page and in the report with each file."""
    said = size_changes(validation)
    for path in files:
        form = model_file(path.name)
        words = said["Checkpoint"] if form is CHECKPOINT else said[form.label]
        ratio = _bytes(words.rpartition("→")[2]) / path.stat().st_size
        yield Row(
            what=f"{case.title}, {form.title}: size said on the page ÷ size on disk ({words})",
            wanted="1.00",
            found=f"{ratio:.3f}",
            holds=abs(ratio - 1) <= _ROUNDING,
        )


def _bytes(words: str) -> float:
    number, unit = words.split()
    return float(number.replace(",", "")) * _UNITS[unit]


def _small_rows(case: _Case, files: tuple[Path, ...], checkpoint: Path) -> Iterator[Row]:
    for path in files:
        form = small_form(path.name)
        if form is None or case.most is None:
            continue
        share = path.stat().st_size / checkpoint.stat().st_size
        found: dict[str, dict[str, torch.Tensor]] = {}
        exec(form.reader(str(path)), found)  # the very lines that people are told to run
        plain = safetensors.torch.load_file(files[0])
        equal = found["weights"].keys() == plain.keys() and all(
            torch.equal(found["weights"][name], value) for name, value in plain.items()
        )
        yield Row(
            what=f"{case.title}: small file ÷ dense file; read by the lines shown, equal to the plain one",
            wanted=f"≤ {case.most:.2f}; yes",
            found=f"{share:.3f}; {'yes' if equal else 'no'}",
            holds=share <= case.most and equal,
        )


def _json_rows(case: _Case, run: Path) -> Iterator[Row]:
    """Compare the JSON line of ``apply`` with each file."""
    schedule, out, printed = run / "schedule.json", run / "written.safetensors", io.StringIO()
    asked = ["--budget", case.kind, "--target", str(case.target), "--format", "json", "--out", str(schedule)]
    with contextlib.redirect_stdout(io.StringIO()):
        main(["schedule", "--run", str(run), *asked])
    with contextlib.redirect_stdout(printed):
        main(["apply", "--run", str(run), "--schedule", str(schedule), "--out", str(out)])
    said: dict[str, int] = json.loads(printed.getvalue())["file_bytes"]
    ratios = [count / Path(path).stat().st_size for path, count in said.items()]
    yield Row(
        what=f"{case.title}: size said by apply ÷ size on disk, {len(ratios)} files",
        wanted="1.00",
        found=f"{min(ratios):.3f} to {max(ratios):.3f}",
        holds=set(ratios) == {1.0},
    )
