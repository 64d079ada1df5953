"""How right and how quick the int8 file is in onnxruntime, beside the best of onnxruntime's own settings.

EfficientNet-Lite0 with ImageNet weights; 200 photographs that nothing was made from judge, and 256 of other halves of
the pictures make the file: half of them fit, half choose.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.real.network import ARCHITECTURE, write_checkpoint
from benchmarks.real.photographs import MADE_FROM, tensors, write_photographs
from benchmarks.results import Row
from senseapp.cli.main import main
from senseapp.data.images import TensorImages
from senseapp.prove.deploy import deploy, original_source
from senseapp.prove.evaluator import ProofImages, ScheduleEvaluator
from senseapp.records.deployment import Deployment, DeploySettings, Median
from senseapp.records.measurement import RunResult, change_in
from senseapp.runtimes.onnxruntime.operations import OPERATIONS
from senseapp.store.run_folder import RunFolder

_MADE_FROM, _SCORED_ON = 256, 200
_MOST_TIME = 1.3


def _result(folder: Path) -> RunResult:
    """Return a short run of the network; deploying takes its model and nothing that it measured."""
    checkpoint = write_checkpoint(folder / "weights.safetensors")
    photographs = write_photographs(folder / "photographs", 4)
    model = ("--model", f"timm/{ARCHITECTURE}", "--checkpoint", str(checkpoint), "--data", str(photographs))
    levels = ("--compression", "quantization", "--levels", "8", "--layers", "conv_stem")
    if main(["analyze", *model, *levels, "--labels", "none", "--preprocessing", "own", "--out", str(folder / "run")]):
        raise RuntimeError("The run failed; its message is above.")
    return RunFolder(folder / "run").load_result()


def rows() -> Iterator[Row]:
    """Yield disagreement, divergence and time as shares of what the best of onnxruntime's own settings has."""
    curves, proof = tensors(_MADE_FROM, MADE_FROM), tensors(_SCORED_ON)
    with tempfile.TemporaryDirectory() as folder:
        images = ProofImages(curves=TensorImages(curves), proof=TensorImages(proof), note="")
        evaluator = ScheduleEvaluator.open(_result(Path(folder)), images=images, progress=lambda step: print(step))
        deployed = deploy(evaluator, original_source(evaluator, OPERATIONS), DeploySettings(most_time=_MOST_TIME))
        found, on_disk = deployed.record, Path(folder) / "file.onnx"
        on_disk.write_bytes(deployed.content)
        size = on_disk.stat().st_size
    default = found.figures["default"].seconds
    for name, most_share, most_kl, most_time, in_float in (
        ("file", 0.35, 0.1, 1.0, f"{len(found.in_float)} parts in float"),
        ("int8", 0.5, 0.5, 1.05, "all in int8"),
    ):
        for metric, wanted, word in (("agreement", most_share, "Disagreement"), ("kl", most_kl, "KL")):
            own, usual = (_change(found, each, metric) for each in (name, "default"))
            yield Row(
                what=f"{word}, {in_float}, as a share of {found.own_title}",
                wanted=f"≤ {wanted}",
                found=f"{own / usual:.2f}: {own:.4f} against {usual:.4f}",
                holds=own <= wanted * usual,
            )
        seconds = found.figures[name].seconds
        yield Row(
            what=f"Its time, {in_float}, as a multiple of {found.own_title}, in turns",
            wanted=f"≤ {most_time}",
            found=f"{seconds.value / default.value:.2f}: {_milliseconds(seconds)} against {_milliseconds(default)}, "
            f"float {_milliseconds(found.figures['original'].seconds)}",
            holds=seconds.value <= most_time * default.value,
        )
    file, original = found.figures["file"], found.figures["original"]
    yield Row(
        what="Its size, as said and on disk",
        wanted="equal",
        found=f"{file.file_bytes} and {size} bytes; all in int8 {found.figures['int8'].file_bytes / 1e6:.1f} MB, float "
        f"{original.file_bytes / 1e6:.1f} MB",
        holds=file.file_bytes == size,
    )
    print(found.in_float)


def _change(found: Deployment, name: str, metric: str) -> float:
    change = change_in(found.figures[name].changes, metric)
    assert change is not None
    return change.delta


def _milliseconds(time: Median) -> str:
    return f"{1000 * time.value:.1f} ms ({1000 * time.low:.1f} to {1000 * time.high:.1f})"
