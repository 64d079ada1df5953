"""NNI's config lists, version 2 and version 3: one entry per layer, in fractions or bits."""

from __future__ import annotations

import json

from senseapp.records.profile import ModelProfile
from senseapp.records.schedule import Schedule
from senseapp.schedules.export.base import ExportFormat, bits_of, fractions_by_layer

_COMPRESSIONS = ("sparsity", "pruning", "quantization")
_CHANNEL_AXES = ("out_channel", "in_channel")  # NNI's names for one scale per index of weight axis 0 and axis 1


def _render_v2(schedule: Schedule, profile: ModelProfile) -> str:
    entries: list[dict[str, object]] = [
        {**_operation(layer, profile), "sparsity_per_layer": fraction}
        for layer, fraction in fractions_by_layer(schedule).items()
    ]
    entries += [
        {
            **_operation(layer, profile),
            "quant_types": ["weight"],
            "quant_bits": {"weight": bits},
        }
        for layer, bits in bits_of(schedule).items()
    ]
    return json.dumps(entries, indent=2, allow_nan=False) + "\n"


def _operation(layer: str, profile: ModelProfile) -> dict[str, object]:
    """Name the layer, and its class where that is known (imported figures do not say it)."""
    kind = profile.layer(layer).layer_type
    return {"op_names": [layer], **({"op_types": [kind]} if kind else {})}


def _render_v3(schedule: Schedule, profile: ModelProfile) -> str:
    entries: list[dict[str, object]] = [
        {"op_names": [layer], "sparse_ratio": fraction} for layer, fraction in fractions_by_layer(schedule).items()
    ]
    entries += [
        {
            "op_names": [layer],
            "target_names": ["weight"],
            "quant_dtype": f"int{bits}",
            "quant_scheme": "symmetric",
            "granularity": _CHANNEL_AXES[profile.layer(layer).channel_axis],
        }
        for layer, bits in bits_of(schedule).items()
    ]
    return json.dumps(entries, indent=2, allow_nan=False) + "\n"


NNI2 = ExportFormat(
    name="nni2",
    title="NNI 2",
    reader="NNI 2.x pruners and quantizers: config_list = json.load(open(FILE)); fractions or bits.",
    suffix=".nni2.json",
    compressions=_COMPRESSIONS,
    render=_render_v2,
)
NNI3 = ExportFormat(
    name="nni3",
    title="NNI 3",
    reader="NNI 3.x pruners and quantizers: config_list = json.load(open(FILE)); fractions or bits.",
    suffix=".nni3.json",
    compressions=_COMPRESSIONS,
    render=_render_v3,
)
