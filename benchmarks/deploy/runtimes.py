"""Files in OpenVINO beside onnxruntime: answers as simulated, times, predicted times, and NNCF's own int8 file.

``SENSEAPP_NNCF_PYTHON`` is the Python of an environment with nncf and openvino; without it those rows are left out.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from torch import Tensor

from benchmarks.deploy.families import FAMILIES, digits, trained
from benchmarks.deploy.simulation import case, fitted_file, outputs
from benchmarks.real.rows import Row
from senseapp.descriptions.levels import BitScale
from senseapp.prove.file_times import FileTimes, times_anew
from senseapp.reconstruct.write import onnx_model
from senseapp.runtimes.call_times import ratio
from senseapp.runtimes.foreign import RuntimeNetwork
from senseapp.runtimes.onnxruntime.int8 import Int8Writer, Rounding, int8_nodes
from senseapp.runtimes.onnxruntime.operations import OPERATIONS as ONNXRUNTIME
from senseapp.runtimes.onnxruntime.runtime import RuntimeModel
from senseapp.runtimes.openvino.operations import OPERATIONS as OPENVINO
from senseapp.runtimes.openvino.runtime import OpenVinoModel, read

_NETWORKS = ("demo", "resnet18", "mobilenetv3_small_100")
_ONLY_SIMULATED = "tf_efficientnet_lite0"
_PYTHON = os.environ.get("SENSEAPP_NNCF_PYTHON", "")
_ROUNDS = 3  # of timings, in each of which files are opened four times
_BITS = BitScale(noun="rounding", axis="Bits")
INTRO = (
    f"{OPENVINO.machine()}; {ONNXRUNTIME.machine()}; load {os.getloadavg()[0]:.1f} at the start (0 is an idle "
    "machine). The demo has its trained network and digits; the others have random weights, photographs of 64 pixels "
    "and a fitted classifier, as above; no residual branch is zero. Files have all of it in int8, ranges and weights "
    "fitted to 16 images, and 96 others are scored. The families learnt digits, as above: 192 fit, all others are "
    "scored. Simulation: step by step as OpenVINO's kernels compute, by the graph that it executes; equal to the bit "
    "but for the order of additions in float, as of layer normalisation. Times: one image, one thread, "
    f"medians over {4 * _ROUNDS} openings of each file; beside predictions, over six. NNCF: nncf.quantize as it comes, "
    "and with accuracy control (at most 1 % of answers changed), on the same 16 images, in OpenVINO's own format."
)


class IrModel(OpenVinoModel):
    """A file of OpenVINO's own format, opened with the same settings as ONNX files."""

    def __init__(self, path: Path, float_file: bytes, *, threads: int | None = None) -> None:
        super().__init__(float_file, threads=threads)
        self._path = path

    def _network(self):
        return read(self._path)


def rows(*names: str) -> Iterator[Row]:
    """Yield the rows of each network, and without ``names`` those of a real one and of trained families."""
    for name in names or _NETWORKS:
        network, fitted, scored = case(name)
        yield from _rows(name, network, fitted, scored)
    if not names:
        network, fitted, scored = case(_ONLY_SIMULATED)
        yield _simulated(_ONLY_SIMULATED, fitted_file(network, fitted, runtime=OPENVINO), scored)
    curves, others = digits()
    for family in () if names else FAMILIES:
        exported = onnx_model(trained(family), curves.images[:2])
        int8 = fitted_file(exported, curves.images, runtime=OPENVINO)
        yield _simulated(family.title, int8, others.images)


def _rows(name: str, network: bytes, fitted: Tensor, scored: Tensor) -> Iterator[Row]:
    int8 = fitted_file(network, fitted, runtime=OPENVINO)
    real = outputs(OPENVINO.open(network), scored)
    yield _simulated(name, int8, scored)
    files = [partial(runtime.open, file, threads=1) for runtime in (ONNXRUNTIME, OPENVINO) for file in (network, int8)]
    spent = list(_times_anew(dict(zip("1234", files, strict=True)), scored[:1]).values())
    shares = [ratio(spent[place + 2], spent[place]) for place in (0, 1)]
    milliseconds = [f"{1000 * statistics.median(each):.3g}" for each in spent]
    yield Row(
        what=f"{name}: ms in float and int8",
        wanted="(told)",
        found=f"onnxruntime {milliseconds[0]} and {milliseconds[1]}, OpenVINO {milliseconds[2]} and {milliseconds[3]}; "
        f"OpenVINO takes {shares[0].value:.2f} ({shares[0].low:.2f} to {shares[0].high:.2f}) and "
        f"{shares[1].value:.2f} ({shares[1].low:.2f} to {shares[1].high:.2f}) of onnxruntime's",
        holds=True,
    )
    yield _predicted(name, network, fitted, scored[:1])
    if _PYTHON:
        for options in ((), ("--accuracy-control",)):
            yield _beside_nncf(name, network, int8, fitted, scored, real, options)


def _simulated(name: str, int8: bytes, scored: Tensor) -> Row:
    meant, found = (outputs(opened, scored) for opened in (RuntimeModel(int8, fused=False), OPENVINO.open(int8)))
    agreement, divergence = _agreement(meant, found), _kl(meant, found)
    equal = float((meant == found).all(1).double().mean())
    return Row(
        what=f"{name}: simulation against OpenVINO",
        wanted="≥ 99.5 %, KL ≤ .002",
        found=f"{100 * agreement:.1f} % of {len(scored)}, KL {divergence:.5f}, {100 * equal:.1f} % equal to the bit",
        holds=agreement >= 0.995 and divergence <= 0.002,
    )


def _predicted(name: str, network: bytes, fitted: Tensor, image: Tensor) -> Row:
    """Compare the predicted time of a file with half of its layers in int8 with the measured one, to float's."""
    with Int8Writer(network, [fitted], rounding=Rounding(), reduce_range=True) as writer:
        all_int8 = writer.write()
        nodes = int8_nodes(all_int8)
        products = {node.name for node in onnx.load_from_string(network).graph.node if node.op_type in ("Conv", "Gemm")}
        weighted = [node for node in nodes if node in products]
        halves = (weighted[: len(weighted) // 2], weighted[len(weighted) // 2 :], weighted[::2])
        times_ = OPENVINO.time_layers(network, writer, {node: node for node in nodes})
        whole = times_.whole({}, _BITS, int8=())
        errors, measured = [], FileTimes(OPENVINO, network, image, threads=1)
        for in_float in halves:
            inside = set(nodes) - set(in_float)
            predicted = times_.whole(dict.fromkeys(inside, 8.0), _BITS, int8=inside) / whole
            errors.append(predicted / measured.measure_precise(writer.write(but=in_float)).value - 1)
    worst = max(map(abs, errors))
    return Row(
        what=f"{name}: predicted time of three files partly int8 in OpenVINO against measured",
        wanted="within 10 %",
        found=", ".join(f"{100 * each:+.0f} %" for each in errors),
        holds=worst <= 0.1,
    )


def _beside_nncf(
    name: str, network: bytes, int8: bytes, fitted: Tensor, scored: Tensor, real: Tensor, options: tuple[str, ...]
) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        source, images, out = (Path(folder) / each for each in ("net.onnx", "images.npy", "int8.xml"))
        source.write_bytes(network)
        np.save(images, fitted.numpy())
        script = Path(__file__).with_name("nncf_quantize.py")
        subprocess.run([_PYTHON, script, source, images, out, *options], check=True, capture_output=True)
        theirs = IrModel(out, network)
        pair: dict[str, Callable[[], RuntimeNetwork]] = {
            "ours": partial(OPENVINO.open, int8, threads=1),
            "NNCF's": partial(IrModel, out, network, threads=1),
        }
        share = ratio(*_times_anew(pair, scored[:1]).values())
        ours_out, theirs_out = outputs(OPENVINO.open(int8), scored), outputs(theirs, scored)
    ours_kl, theirs_kl = (_kl(real, each) for each in (ours_out, theirs_out))
    ours, nncf = (_agreement(real, each) for each in (ours_out, theirs_out))
    return Row(
        what=f"{name}: our int8 file beside NNCF's{' with accuracy control' if options else ''}, both in OpenVINO, "
        "against float",
        wanted="KL ≤ 1.0 × NNCF's, time ≤ 1.05 ×",
        found=f"ours {100 * ours:.1f} %, KL {ours_kl:.5f}; NNCF {100 * nncf:.1f} %, KL {theirs_kl:.5f}; ours takes "
        f"{share.value:.2f} ({share.low:.2f} to {share.high:.2f}) of its time",
        holds=ours_kl <= theirs_kl and share.value <= 1.05,
    )


def _times_anew(openers: Mapping[str, Callable[[], RuntimeNetwork]], image: Tensor) -> dict[str, list[float]]:
    """Return the seconds of calls of files in turns, each opened anew several times."""
    rounds = [times_anew(openers, OPENVINO, image) for _ in range(_ROUNDS)]
    return {name: [second for each in rounds for second in each[name]] for name in openers}


def _agreement(first: Tensor, second: Tensor) -> float:
    return float((first.argmax(1) == second.argmax(1)).double().mean())


def _kl(first: Tensor, second: Tensor) -> float:
    one, other = (each.double().log_softmax(1) for each in (first, second))
    return float((one.exp() * (one - other)).sum(1).mean())
