"""Is what is said of int8 before a run true? Predicted and measured times of int8 files, as multiples of float.

Run as ``python -m benchmarks.int8_pays [--networks NAME …] [--folder FOLDER] [--processor-time]``. Of each network with
random weights, the ratio is predicted from its shapes (:func:`~senseapp.prove.probe.predict_int8`) and from a first
file (:func:`~senseapp.prove.probe.try_int8`), then measured in three rounds, one image a call on one thread, as the
files of a search are (:class:`~senseapp.prove.file_times.FileTimes`). Float files are kept in the folder, since writing
them takes longest. Each network is a row of ``benchmarks/RESULTS.md``, the last row how many are within 15 % of what
was measured. The load of the machine is said with each. On a busy one, ``--processor-time`` counts processor time in
place of wall time: of the thread that calls, where onnxruntime computes, and of all threads for OpenVINO, which
computes in another one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import timm
import torch

from benchmarks.results import write_row
from senseapp.core.process import become_measuring
from senseapp.descriptions.runtimes import usual_runtime
from senseapp.networks.operations import glue_of
from senseapp.networks.profile import profile_model
from senseapp.prove.file_times import FileTimes
from senseapp.prove.probe import predict_int8, try_int8
from senseapp.runtimes.base import Runtime, runtime_named
from senseapp.runtimes.openvino import OPENVINO
from senseapp.tasks import CLASSIFICATION

NETWORKS = (
    *("lcnet_050", "mobilenetv3_small_050", "tinynet_e", "mnasnet_small", "mobilenetv2_050", "regnetx_002"),
    *("regnety_002", "efficientnet_lite0", "convnext_atto", "vit_tiny_patch16_224", "repvgg_a0", "resnet18"),
)
_CLOSE = 0.15
_ROUNDS = 3
_TITLE = "Whether int8 pays in {runtime}, before a file is made (`python -m benchmarks.int8_pays{options}`)"
_HEAD = (
    "| network | measured (rounds) | timed on a first file | from its shapes | float, ms | load |",
    "|---|---|---|---|---|---|",
)
_ALL = f"within {100 * _CLOSE:.0f} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Times of a network in int8, as multiples of its time in float: what was predicted, and measured in each round."""

    network: str
    rounds: tuple[float, ...]
    from_file: float
    from_shapes: float
    float_seconds: float
    load: float

    @property
    def measured(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds)

    @property
    def line(self) -> str:
        """A row of the table."""
        cells = (
            self.network,
            f"{self.measured:.2f} ({min(self.rounds):.2f} to {max(self.rounds):.2f})",
            *(f"{each:.2f} ({100 * self.error(each):+.0f} %)" for each in (self.from_file, self.from_shapes)),
            f"{1000 * self.float_seconds:.1f}",
            f"{self.load:.0f}",
        )
        return f"| {' | '.join(cells)} |"

    def error(self, predicted: float) -> float:
        """Return by how much a prediction is off, as a share of what was measured."""
        return predicted / self.measured - 1


def predicted(name: str, runtime: Runtime, folder: Path) -> Predicted:
    """Return what was predicted and measured of one network."""
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False).eval()
    image = torch.randn(1, *model.default_cfg["input_size"])
    profile = profile_model(model, image, task=CLASSIFICATION, title=name, pretrained=False)
    shapes = predict_int8(profile, glue_of(model, image), runtime, kept=folder)
    file = folder / f"{name}.float{runtime.description.suffix}"
    if not file.is_file():
        file.write_bytes(runtime.exporter(model, image).write(model))
    network = file.read_bytes()
    tried = try_int8(runtime, network, [image])
    with runtime.quantizer(network, [image]) as quantizer:
        int8 = quantizer.write()
    rounds = []
    for _ in range(_ROUNDS):
        rounds.append(FileTimes(runtime, network, image, threads=1).anew(int8).value)
    return Predicted(
        network=name,
        rounds=tuple(rounds),
        from_file=tried.ratio,
        from_shapes=shapes.ratio,
        float_seconds=tried.float_seconds,
        load=os.getloadavg()[0],
    )


def _summary(found: Sequence[Predicted]) -> str:
    """Return the last row: how many predictions were close, and how far off the worst is."""
    cells = []
    for kind in ("from_file", "from_shapes"):
        errors = [abs(each.error(getattr(each, kind))) for each in found]
        close = sum(error <= _CLOSE for error in errors)
        cells.append(f"{close} of {len(found)}, at most {100 * max(errors):.0f} % off")
    return f"| {_ALL} | | {cells[0]} | {cells[1]} | | |"


def main() -> None:
    """Write a row for each network, and how many predictions were close."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--runtime", default=usual_runtime())
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--processor-time", action="store_true")
    asked = parser.parse_args()
    if asked.processor_time:
        time.perf_counter = time.process_time if asked.runtime == OPENVINO.name else time.thread_time
    torch.set_num_threads(1)
    runtime = runtime_named(asked.runtime)
    named = f" --runtime {asked.runtime}" if asked.runtime != usual_runtime() else ""
    options = f"{named}{' --processor-time' if asked.processor_time else ''}"
    title = _TITLE.format(runtime=runtime.description.label, options=options)
    intro = (
        f"All of a network in int8 ({runtime.machine()}, one image a call, one thread), as a multiple of its time in "
        f"float: predicted, and measured in {_ROUNDS} rounds on files opened anew. Random weights. In "
        f"{'processor' if asked.processor_time else 'wall'} time; kernels of the prediction from shapes in wall time."
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.folder or Path(scratch)
        found = []
        for name in asked.networks:
            found.append(predicted(name, runtime, folder))
            print(found[-1].line, flush=True)
            write_row(title, [intro, "", *_HEAD], found[-1].line)
    print(_summary(found))
    if len(found) == len(NETWORKS):
        write_row(title, [intro, "", *_HEAD], _summary(found))


if __name__ == "__main__":
    become_measuring(beside_others=False)
    main()
