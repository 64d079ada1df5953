"""Configuration files with one entry per layer: NNI, torchao and NVIDIA Model-Optimizer."""

from __future__ import annotations

from typing import Any

from senseapp.core.errors import InvalidSchedule
from senseapp.records.profile import ModelProfile
from senseapp.records.schedule import Schedule
from senseapp.schedules.export.base import ExportFormat, bits_of, fractions_by_layer, json_text

_NNI_COMPRESSIONS = ("sparsity", "pruning", "quantization")
_NNI_CHANNEL_AXES = ("out_channel", "in_channel")  # one scale per index of weight axis 0 and axis 1
# The structure and version numbers are those that torchao 0.18 writes; its ``config_from_dict`` refuses others with a
# message, so a change there is seen, not silent.
_TORCHAO_FQN_TO_CONFIG_VERSION = 1
_TORCHAO_WEIGHT_ONLY_VERSION = 2
_TORCHAO_PER_AXIS_VERSION = 1
_TORCHAO_WEIGHT_DIMENSIONS = (2, 4)  # torchao quantizes linear and two-dimensional convolution weights


def _nni2(schedule: Schedule, profile: ModelProfile) -> str:
    entries: list[dict[str, object]] = [
        {**_nni2_operation(layer, profile), "sparsity_per_layer": fraction}
        for layer, fraction in fractions_by_layer(schedule).items()
    ]
    entries += [
        {**_nni2_operation(layer, profile), "quant_types": ["weight"], "quant_bits": {"weight": bits}}
        for layer, bits in bits_of(schedule).items()
    ]
    return json_text(entries)


def _nni2_operation(layer: str, profile: ModelProfile) -> dict[str, object]:
    """Name the layer, and its class where that is known (imported figures do not say it)."""
    kind = profile.layer(layer).layer_type
    return {"op_names": [layer], **({"op_types": [kind]} if kind else {})}


def _nni3(schedule: Schedule, profile: ModelProfile) -> str:
    entries: list[dict[str, object]] = [
        {"op_names": [layer], "sparse_ratio": fraction} for layer, fraction in fractions_by_layer(schedule).items()
    ]
    entries += [
        {
            "op_names": [layer],
            "target_names": ["weight"],
            "quant_dtype": f"int{bits}",
            "quant_scheme": "symmetric",
            "granularity": _NNI_CHANNEL_AXES[profile.layer(layer).channel_axis],
        }
        for layer, bits in bits_of(schedule).items()
    ]
    return json_text(entries)


NNI2, NNI3 = (
    ExportFormat(
        name=f"nni{version}",
        title=f"NNI {version}",
        reader=f"NNI {version}.x pruners and quantizers: config_list = json.load(open(FILE)); fractions or bits.",
        suffix=f".nni{version}.json",
        compressions=_NNI_COMPRESSIONS,
        render=render,
    )
    for version, render in ((2, _nni2), (3, _nni3))
)


def _torchao(schedule: Schedule, profile: ModelProfile) -> str:
    """Write ``FqnToConfig`` in the JSON form of torchao's own ``config_to_dict``."""
    configs: dict[str, Any] = {}
    for layer, bits in bits_of(schedule).items():
        described = profile.layer(layer)
        if len(described.weight_shape) not in _TORCHAO_WEIGHT_DIMENSIONS or described.channel_axis != 0:
            raise InvalidSchedule(
                f"torchao quantizes Linear and Conv2d weights per output channel; {layer} is a "
                f"{described.layer_type}. Leave it uncompressed, or choose another format."
            )
        configs[layer] = _torchao_weight_only(bits)
    payload = {"fqn_to_config": configs, "module_fqn_to_config": configs}
    return json_text({"_type": "FqnToConfig", "_version": _TORCHAO_FQN_TO_CONFIG_VERSION, "_data": payload})


def _torchao_weight_only(bits: int) -> dict[str, Any]:
    return {
        "_type": "IntxWeightOnlyConfig",
        "_version": _TORCHAO_WEIGHT_ONLY_VERSION,
        "_data": {
            "weight_dtype": {"_type": "torch.dtype", "_data": f"int{bits}"},
            "granularity": {"_type": "PerAxis", "_version": _TORCHAO_PER_AXIS_VERSION, "_data": {"axis": 0}},
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
    render=_torchao,
)


def _modelopt(schedule: Schedule, profile: ModelProfile) -> str:
    """Turn everything off, then give one entry per weight quantizer."""
    entries: list[dict[str, object]] = [{"quantizer_name": "*", "enable": False}]
    for layer, bits in bits_of(schedule).items():
        config = {"num_bits": bits, "axis": profile.layer(layer).channel_axis}
        entries.append({"quantizer_name": f"{layer}.weight_quantizer", "cfg": config})
    return json_text({"quant_cfg": entries, "algorithm": "max"})


MODELOPT = ExportFormat(
    name="modelopt",
    title="NVIDIA Model-Optimizer",
    reader="modelopt: mtq.quantize(model, json.load(open(FILE)), forward_loop); weights only, one scale per channel.",
    suffix=".modelopt.json",
    compressions=("quantization",),
    render=_modelopt,
)
