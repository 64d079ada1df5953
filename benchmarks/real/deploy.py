"""How right and how quick the int8 file is in onnxruntime, beside onnxruntime's own of the same network."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.real.network import ARCHITECTURE, write_checkpoint
from benchmarks.real.photographs import MADE_FROM, tensors, write_photographs
from benchmarks.real.rows import Row
from senseapp.cli.main import main
from senseapp.data.images import TensorImages
from senseapp.records.deployment import Deployment, DeploySettings, Median
from senseapp.records.measurement import SensitivityResult, change_in
from senseapp.schedules.deploy import deploy
from senseapp.schedules.evaluator import ProofImages, ScheduleEvaluator
from senseapp.store.run_folder import RunFolder

_MADE_FROM, _SCORED_ON = 128, 200
_MOST_TIME = 1.3


def _result(folder: Path) -> SensitivityResult:
    """Return a short run of the network; deploying takes its model and nothing that it measured."""
    checkpoint = write_checkpoint(folder / "weights.safetensors")
    photographs = write_photographs(folder / "photographs", 4)
    model = ("--model", f"timm/{ARCHITECTURE}", "--checkpoint", str(checkpoint), "--data", str(photographs))
    levels = ("--compression", "quantization", "--levels", "8", "--layers", "conv_stem")
    if main(["analyze", *model, *levels, "--labels", "none", "--preprocessing", "own", "--out", str(folder / "run")]):
        raise RuntimeError("The run failed; its message is above.")
    return RunFolder(folder / "run").load_result()


def deployed(most_time: float) -> Deployment:
    """Return the file of the uncompressed network; no part of a picture both chooses and scores."""
    with tempfile.TemporaryDirectory() as folder:
        result = _result(Path(folder))
        images = ProofImages(
            curves=TensorImages(tensors(_MADE_FROM, MADE_FROM)), proof=TensorImages(tensors(_SCORED_ON)), note=""
        )
        evaluator = ScheduleEvaluator.open(result, images=images)
        return deploy(evaluator, None, DeploySettings(most_time=most_time)).record


def _disagreement(found: Deployment, name: str) -> float:
    change = change_in(found.figures[name].changes, "agreement")
    assert change is not None
    return change.delta


def _milliseconds(time: Median) -> str:
    return f"{1000 * time.value:.1f} ms ({1000 * time.low:.1f} to {1000 * time.high:.1f})"


def rows() -> Iterator[Row]:
    """Yield disagreement and time of the file, as shares of all-int8 by onnxruntime."""
    found = deployed(_MOST_TIME)
    own, all_int8 = _disagreement(found, "file"), _disagreement(found, "int8")
    file, int8, original = (found.figures[name] for name in ("file", "int8", "original"))
    yield Row(
        what=f"Disagreement with the original in onnxruntime, as a share of all-int8's (a scale for each channel), "
        f"{found.images} photographs; {len(found.in_float)} parts in float",
        wanted="≤ .15",
        found=f"{own / all_int8:.2f} ({100 * own:.1f} % against {100 * all_int8:.1f} %)",
        holds=own <= 0.15 * all_int8,
    )
    slower = file.seconds.value / int8.seconds.value
    yield Row(
        what="Its time, as a multiple of all-int8's, in turns",
        wanted=f"≤ {_MOST_TIME}",
        found=f"{slower:.2f}: {_milliseconds(file.seconds)}, all-int8 {_milliseconds(int8.seconds)}, "
        f"float {_milliseconds(original.seconds)}",
        holds=slower <= _MOST_TIME,
    )
    yield Row(
        what="Its size on disk",
        wanted="under a third of float's",
        found=f"{file.file_bytes / 1e6:.1f} MB, float {original.file_bytes / 1e6:.1f} MB",
        holds=3 * file.file_bytes < original.file_bytes,
    )
