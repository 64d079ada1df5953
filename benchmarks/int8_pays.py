"""Is what is said of int8 before a run true? Predicted and measured times of int8 files, as multiples of float.

Run as ``python -m benchmarks.int8_pays [--networks NAME …] [--folder FOLDER] [--processor-time]``. Of each network with
random weights, the ratio is predicted from its shapes (:func:`~senseapp.prove.probe.predict_int8`) and from a first
file (:func:`~senseapp.prove.probe.try_int8`), then measured on files opened anew, one image a call on one thread, in
three rounds of 41 turns. Float files are kept in the folder, since writing them takes longest. One JSON line for each
network, at last the share within 15 % of what was measured. The load of the machine is said with each. On a busy one,
``--processor-time`` counts processor time in place of wall time: of the thread that calls, where onnxruntime computes,
and of all threads for OpenVINO, which computes in another one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import timm
import torch

from senseapp.descriptions.runtimes import usual_runtime
from senseapp.networks.operations import glue_of
from senseapp.networks.profile import profile_model
from senseapp.prove.probe import predict_int8, try_int8
from senseapp.runtimes.base import TURNS, Runtime, ratio, runtime_named
from senseapp.runtimes.openvino import OPENVINO
from senseapp.tasks import CLASSIFICATION

NETWORKS = (
    *("lcnet_050", "mobilenetv3_small_050", "tinynet_e", "mnasnet_small", "mobilenetv2_050", "regnetx_002"),
    *("regnety_002", "efficientnet_lite0", "convnext_atto", "vit_tiny_patch16_224", "repvgg_a0", "resnet18"),
)
_CLOSE = 0.15
_ROUNDS = 3


def row(name: str, runtime: Runtime, folder: Path) -> dict[str, Any]:
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
        opened = [runtime.open(content, threads=1) for content in (int8, network)]
        rounds.append(ratio(*runtime.times(opened, image, turns=TURNS)).value)
    measured = statistics.median(rounds)
    return {
        "network": name,
        "measured": measured,
        "rounds": rounds,
        "from_file": tried.ratio,
        "from_file_low": tried.low,
        "from_file_high": tried.high,
        "from_shapes": shapes.ratio,
        "float_ms": 1000 * tried.float_seconds,
        "load": os.getloadavg()[0],
        "machine": runtime.machine(),
    }


def main() -> None:
    """Print a line for each network, and how many predictions were close."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--runtime", default=usual_runtime())
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--processor-time", action="store_true")
    asked = parser.parse_args()
    if asked.processor_time:
        time.perf_counter = time.process_time if asked.runtime == OPENVINO.name else time.thread_time
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.folder or Path(scratch)
        rows = []
        for name in asked.networks:
            rows.append(row(name, runtime_named(asked.runtime), folder))
            sys.stdout.write(json.dumps(rows[-1]) + "\n")
            sys.stdout.flush()
    errors = {key: [abs(each[key] / each["measured"] - 1) for each in rows] for key in ("from_file", "from_shapes")}
    summary = {
        key: {"within_15_percent": sum(each <= _CLOSE for each in found), "of": len(found), "largest": max(found)}
        for key, found in errors.items()
    }
    sys.stdout.write(json.dumps(summary) + "\n")


if __name__ == "__main__":
    main()
