"""NVIDIA Model-Optimizer's ``quant_cfg``: everything off, then one entry per weight quantizer."""

from __future__ import annotations

import json

from senseapp.records.profile import ModelProfile
from senseapp.records.schedule import Schedule
from senseapp.schedules.export.base import ExportFormat, bits_of


def _render(schedule: Schedule, profile: ModelProfile) -> str:
    entries: list[dict[str, object]] = [{"quantizer_name": "*", "enable": False}]
    entries += [
        {
            "quantizer_name": f"{layer}.weight_quantizer",
            "cfg": {"num_bits": bits, "axis": profile.layer(layer).channel_axis},
        }
        for layer, bits in bits_of(schedule).items()
    ]
    return json.dumps({"quant_cfg": entries, "algorithm": "max"}, indent=2, allow_nan=False) + "\n"


MODELOPT = ExportFormat(
    name="modelopt",
    title="NVIDIA Model-Optimizer",
    reader="modelopt: mtq.quantize(model, json.load(open(FILE)), forward_loop); weights only, one scale per channel.",
    suffix=".modelopt.json",
    compressions=("quantization",),
    render=_render,
)
