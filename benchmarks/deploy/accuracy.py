"""How right and how quick the int8 file is in onnxruntime, beside onnxruntime's own of the same network."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.real.network import ARCHITECTURE, load_network, write_checkpoint
from benchmarks.real.photographs import MADE_FROM, tensors, write_photographs
from benchmarks.real.rows import Row
from senseapp.cli.main import main
from senseapp.data.images import TensorImages
from senseapp.prove.deploy import deploy, original_source
from senseapp.prove.evaluator import ScheduleEvaluator
from senseapp.prove.proof_images import ProofImages
from senseapp.reconstruct.write import onnx_model
from senseapp.records.deployment import Deployment, DeploySettings, Median
from senseapp.records.measurement import RunResult, change_in
from senseapp.runtimes.onnxruntime.int8 import Int8Writer
from senseapp.runtimes.onnxruntime.operations import OPERATIONS
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel
from senseapp.store.run_folder import RunFolder

_MADE_FROM, _SCORED_ON = 256, 200
INTRO = (
    f"EfficientNet-Lite0 with ImageNet weights, {_SCORED_ON} photographs that nothing was made from, and {_MADE_FROM} "
    "of other halves of the pictures: half of them fit, half choose. Weights and pictures: `benchmarks/real`."
)
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
    """Yield disagreement with the original as a share of what onnxruntime's own quantizer leaves, and time."""
    curves, proof = tensors(_MADE_FROM, MADE_FROM), tensors(_SCORED_ON)
    with tempfile.TemporaryDirectory() as folder:
        images = ProofImages(curves=TensorImages(curves), proof=TensorImages(proof), note="")
        evaluator = ScheduleEvaluator.open(_result(Path(folder)), images=images, progress=lambda step: print(step))
        deployed = deploy(evaluator, original_source(evaluator, OPERATIONS), DeploySettings(most_time=_MOST_TIME))
        found, on_disk = deployed.record, Path(folder) / "file.onnx"
        on_disk.write_bytes(deployed.content)
        size = on_disk.stat().st_size
    exported = onnx_model(load_network(), proof[:1])
    with Int8Writer(exported, [curves]) as writer:
        usual = writer.write()
    answers = RuntimeModel(exported).run(proof).argmax(1)
    here, elsewhere = (
        float((RuntimeModel(usual, simulated=simulated).run(proof).argmax(1) != answers).float().mean())
        for simulated in (False, True)
    )
    quickest = found.figures["default"].seconds.value
    for name, wanted, most_time, in_float in (
        ("file", 0.15, _MOST_TIME, f"{len(found.in_float)} parts in float"),
        ("int8", 0.5, 1.05, "all in int8"),
    ):
        own = _disagreement(found, name)
        yield Row(
            what=f"Disagreement, {in_float}, as a share of onnxruntime's own (a scale for each channel); "
            "in brackets: of the same without saturation",
            wanted=f"≤ {wanted}",
            found=f"{own / here:.2f} ({own / elsewhere:.2f}): {100 * own:.1f} % against {100 * here:.1f} % "
            f"({100 * elsewhere:.1f} %); KL {_change(found, name, 'kl'):.4f}",
            holds=own <= wanted * min(here, elsewhere),
        )
        seconds = found.figures[name].seconds
        yield Row(
            what=f"Its time, {in_float}, as a multiple of onnxruntime's own all-int8, in turns",
            wanted=f"≤ {most_time}",
            found=f"{seconds.value / quickest:.2f}: {_milliseconds(seconds)}, float "
            f"{_milliseconds(found.figures['original'].seconds)}",
            holds=seconds.value <= most_time * quickest,
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


def _disagreement(found: Deployment, name: str) -> float:
    return _change(found, name, "agreement")


def _change(found: Deployment, name: str, metric: str) -> float:
    change = change_in(found.figures[name].changes, metric)
    assert change is not None
    return change.delta


def _milliseconds(time: Median) -> str:
    return f"{1000 * time.value:.1f} ms ({1000 * time.low:.1f} to {1000 * time.high:.1f})"
