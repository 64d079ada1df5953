"""Our int8 file beside NNCF's own, both in OpenVINO.

``SENSEAPP_NNCF_PYTHON`` is the Python of an environment with nncf and openvino. NNCF is ``nncf.quantize`` as it comes,
on the same 16 images, in OpenVINO's own format.

The demo has its trained network and digits; the others have random weights, photographs of 64 pixels and a fitted
classifier; no residual branch is zero. Files have all of it in int8, fitted to 16 images, and 96 others are scored.
Times: one image, one thread, medians over 12 openings of each file.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor

from benchmarks.deploy.cases import case, fitted_file, outputs
from benchmarks.results import Row
from senseapp.networks.network import Network
from senseapp.prove.file_times import times_anew
from senseapp.runtimes.call_times import ratio
from senseapp.runtimes.openvino.operations import OPERATIONS as OPENVINO
from senseapp.runtimes.openvino.operations import OpenVinoModel, read

_NETWORKS = ("demo", "resnet18", "mobilenetv3_small_100")
_PYTHON = os.environ["SENSEAPP_NNCF_PYTHON"]
_ROUNDS = 3  # of timings, in each of which files are opened four times


class IrModel(OpenVinoModel):
    """A file of OpenVINO's own format, opened with the same settings as ONNX files."""

    def __init__(self, path: Path, float_file: bytes, *, threads: int | None = None) -> None:
        super().__init__(float_file, threads=threads)
        self._path = path

    def _network(self):
        return read(self._path)


def rows() -> Iterator[Row]:
    """Yield the row of each network."""
    for name in _NETWORKS:
        network, fitted, scored = case(name)
        yield _row(name, network, fitted, scored)


def _row(name: str, network: bytes, fitted: Tensor, scored: Tensor) -> Row:
    int8 = fitted_file(network, fitted, runtime=OPENVINO)
    real = outputs(OPENVINO.open(network), scored)
    with tempfile.TemporaryDirectory() as folder:
        source, images, out = (Path(folder) / each for each in ("net.onnx", "images.npy", "int8.xml"))
        source.write_bytes(network)
        np.save(images, fitted.numpy())
        script = Path(__file__).with_name("nncf_quantize.py")
        subprocess.run([_PYTHON, script, source, images, out], check=True, capture_output=True)
        theirs = IrModel(out, network)
        pair: dict[str, Callable[[], Network]] = {
            "ours": partial(OPENVINO.open, int8, threads=1),
            "NNCF's": partial(IrModel, out, network, threads=1),
        }
        share = ratio(*_times_anew(pair, scored[:1]).values())
        ours_out, theirs_out = outputs(OPENVINO.open(int8), scored), outputs(theirs, scored)
    ours_kl, theirs_kl = (_kl(real, each) for each in (ours_out, theirs_out))
    ours, nncf = (_agreement(real, each) for each in (ours_out, theirs_out))
    return Row(
        what=f"{name}: our int8 file beside NNCF's, both in OpenVINO, against float",
        wanted="KL ≤ 1.0 × NNCF's, time ≤ 1.05 ×",
        found=f"ours {100 * ours:.1f} %, KL {ours_kl:.5f}; NNCF {100 * nncf:.1f} %, KL {theirs_kl:.5f}; ours takes "
        f"{share.value:.2f} ({share.low:.2f} to {share.high:.2f}) of its time",
        holds=ours_kl <= theirs_kl and share.value <= 1.05,
    )


def _times_anew(openers: Mapping[str, Callable[[], Network]], image: Tensor) -> dict[str, list[float]]:
    """Return the seconds of calls of files in turns, each opened anew several times."""
    rounds = [times_anew(openers, OPENVINO, image) for _ in range(_ROUNDS)]
    return {name: [second for each in rounds for second in each[name]] for name in openers}


def _agreement(first: Tensor, second: Tensor) -> float:
    return float((first.argmax(1) == second.argmax(1)).double().mean())


def _kl(first: Tensor, second: Tensor) -> float:
    one, other = (each.double().log_softmax(1) for each in (first, second))
    return float((one.exp() * (one - other)).sum(1).mean())
