"""torchao's ``FqnToConfig``, in the JSON form of its own ``config_to_dict``.

The structure and version numbers are those that torchao 0.18 writes; ``config_from_dict`` refuses others with a
message, so a change there is seen, not silent.
"""

from __future__ import annotations

import json
from typing import Any

from senseapp.core.errors import InvalidSchedule
from senseapp.records.profile import ModelProfile
from senseapp.records.schedule import Schedule
from senseapp.schedules.export.base import ExportFormat, bits_of

_FQN_TO_CONFIG_VERSION = 1
_WEIGHT_ONLY_VERSION = 2
_PER_AXIS_VERSION = 1
_WEIGHT_DIMENSIONS = (2, 4)  # torchao quantizes linear and two-dimensional convolution weights


def _render(schedule: Schedule, profile: ModelProfile) -> str:
    configs: dict[str, Any] = {}
    for layer, bits in bits_of(schedule).items():
        described = profile.layer(layer)
        if len(described.weight_shape) not in _WEIGHT_DIMENSIONS or described.channel_axis != 0:
            raise InvalidSchedule(
                f"torchao quantizes Linear and Conv2d weights per output channel; {layer} is a "
                f"{described.layer_type}. Leave it uncompressed, or choose another format."
            )
        configs[layer] = _weight_only(bits)
    payload = {"fqn_to_config": configs, "module_fqn_to_config": configs}
    document = {"_type": "FqnToConfig", "_version": _FQN_TO_CONFIG_VERSION, "_data": payload}
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _weight_only(bits: int) -> dict[str, Any]:
    return {
        "_type": "IntxWeightOnlyConfig",
        "_version": _WEIGHT_ONLY_VERSION,
        "_data": {
            "weight_dtype": {"_type": "torch.dtype", "_data": f"int{bits}"},
            "granularity": {"_type": "PerAxis", "_version": _PER_AXIS_VERSION, "_data": {"axis": 0}},
            "mapping_type": {"_type": "MappingType", "_data": "SYMMETRIC"},
            "scale_dtype": None,
            "intx_packing_format": {"_type": "IntxPackingFormat", "_data": "UNPACKED_TO_INT8"},
            "intx_choose_qparams_algorithm": {"_type": "IntxChooseQParamsAlgorithm", "_data": "AFFINE"},
        },
    }


TORCHAO = ExportFormat(
    name="torchao",
    title="torchao",
    reader="torchao 0.18: quantize_(model, config_from_dict(json.load(open(FILE))), filter_fn=None); bits of weights.",
    suffix=".torchao.json",
    compressions=("quantization",),
    render=_render,
)
