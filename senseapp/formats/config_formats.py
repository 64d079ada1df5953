"""Configuration files with one entry per layer: NNI, torchao and NVIDIA Model-Optimizer."""

from collections.abc import Sequence
from typing import Any

from senseapp.formats.base import (
    NOTES,
    ExportFormat,
    bits_of,
    fractions_by_layer,
    has_own_weight,
    is_image_layer,
    json_text,
    noted,
)
from senseapp.records.profile import LayerProfile, ModelProfile
from senseapp.records.schedule import Schedule

_NNI_CHANNEL_AXES = ("out_channel", "in_channel")  # one scale per index of weight axis 0 and axis 1
_ATTENTION = "the joint projection of nn.MultiheadAttention"
_LAYERS = "(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)"


_TORCH_CLASSES = frozenset({"Linear", *(f"Conv{kind}{n}d" for kind in ("", "Transpose") for n in (1, 2, 3))})


def _nni2(schedule: Schedule, profile: ModelProfile, notes: Sequence[str]) -> str:
    entries: list[dict[str, object]] = [
        {**_nni2_operation(layer, profile), "sparsity_per_layer": fraction}
        for layer, fraction in fractions_by_layer(schedule).items()
    ]
    entries += [
        {**_nni2_operation(layer, profile), "quant_types": ["weight"], "quant_bits": {"weight": bits}}
        for layer, bits in bits_of(schedule).items()
    ]
    return _entries_text(entries, notes)


def _entries_text(entries: list[dict[str, object]], notes: Sequence[str]) -> str:
    """Put the notes in an entry of their own, which the lines that apply the file take out."""
    return json_text([*([{NOTES: list(notes)}] if notes else []), *entries])


def _nni2_operation(layer: str, profile: ModelProfile) -> dict[str, object]:
    """Name the layer, and its class where NNI knows that; its quantizers refuse others, and take layers without."""
    kind = profile.layer(layer).layer_type
    return {"op_names": [layer], **({"op_types": [kind]} if kind in _TORCH_CLASSES else {})}


def _nni3(schedule: Schedule, profile: ModelProfile, notes: Sequence[str]) -> str:
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
    return _entries_text(entries, notes)


_NNI2_USAGE = """\
import json
from nni.compression.pytorch.pruning import LevelPruner

config_list = [entry for entry in json.load(open("FILE")) if "_notes" not in entry]
model, masks = LevelPruner(model, config_list).compress()
"""
_NNI2_USAGE_OF_BITS = """\
import json
import torch
from nni.algorithms.compression.pytorch.quantization import QAT_Quantizer

config_list = [entry for entry in json.load(open("FILE")) if "_notes" not in entry]
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model = QAT_Quantizer(model, config_list, optimizer, dummy_input=images).compress()
"""
_NNI3_USAGE = f"""\
import json
from nni.compression.base.setting import PruningSetting
from nni.compression.pruning import LevelPruner
from torch import nn

config_list = [entry for entry in json.load(open("FILE")) if "_notes" not in entry]
for module in model.modules():  # NNI takes no subclass, such as timm's Conv2dSame, unless it is registered
    for known in {_LAYERS}:
        if isinstance(module, known):
            PruningSetting.registry.setdefault(type(module).__name__, PruningSetting.registry[known.__name__])
model, masks = LevelPruner(model, config_list).compress()
"""
_NNI3_USAGE_OF_BITS = f"""\
import json
import nni
import torch
from nni.compression.base.setting import QuantizationSetting
from nni.compression.quantization import PtqQuantizer
from nni.compression.utils import TorchEvaluator
from torch import nn

config_list = [entry for entry in json.load(open("FILE")) if "_notes" not in entry]
for module in model.modules():  # NNI takes no subclass, such as timm's Conv2dSame, unless it is registered
    for known in {_LAYERS}:
        if isinstance(module, known):
            QuantizationSetting.registry.setdefault(type(module).__name__, QuantizationSetting.registry[known.__name__])
optimizer = nni.trace(torch.optim.SGD)(model.parameters(), lr=0.0)
evaluator = TorchEvaluator(lambda net, *_: net(images), optimizer, lambda batch, net: net(batch).sum())
model, scales = PtqQuantizer(model, config_list, evaluator).compress(None, 1)
"""

NNI2, NNI3 = (
    ExportFormat(
        name=f"nni{version}",
        title=f"NNI {version}",
        reader=f"NNI {version}.x pruners and quantizers: config_list = json.load(open(FILE)); fractions or bits.",
        suffix=f".nni{version}.json",
        usage=usage,
        usage_of_bits=usage_of_bits,
        compressions=("sparsity", "pruning", "quantization"),
        render=render,
        reaches=has_own_weight,
        out_of_reach=_ATTENTION,
    )
    for version, render, usage, usage_of_bits in (
        (2, _nni2, _NNI2_USAGE, _NNI2_USAGE_OF_BITS),
        (3, _nni3, _NNI3_USAGE, _NNI3_USAGE_OF_BITS),
    )
)


def _torchao(schedule: Schedule, profile: ModelProfile, notes: Sequence[str]) -> str:
    """Write ``FqnToConfig`` as ``config_to_dict`` of torchao 0.18, whose reader refuses other versions."""
    configs = {layer: _torchao_weight_only(bits) for layer, bits in bits_of(schedule).items()}
    payload = {"fqn_to_config": configs, "module_fqn_to_config": configs}
    return noted({"_type": "FqnToConfig", "_version": 1, "_data": payload}, notes)


def _torchao_takes(layer: LayerProfile) -> bool:
    """Its scales span all input channels of the model's layer, so grouped convolutions make ``quantize_`` fail."""
    shape = layer.weight_shape
    grouped = len(shape) == 4 and bool(layer.input_shape) and layer.input_shape[0] != shape[1]
    return is_image_layer(layer) and not grouped


def _torchao_weight_only(bits: int) -> dict[str, Any]:
    return {
        "_type": "IntxWeightOnlyConfig",
        "_version": 2,
        "_data": {
            "weight_dtype": {"_type": "torch.dtype", "_data": f"int{bits}"},
            "granularity": {"_type": "PerAxis", "_version": 1, "_data": {"axis": 0}},
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
    usage="""\
import json
from torchao.core.config import config_from_dict
from torchao.quantization import quantize_

quantize_(model, config_from_dict(json.load(open("FILE"))), filter_fn=None)
""",
    compressions=("quantization",),
    render=_torchao,
    reaches=_torchao_takes,
    out_of_reach="grouped and depthwise convolutions, and layers other than Conv2d and Linear",
    differs="torchao rounds to another grid than was measured: at 4 bits from -8 to 7, not from -7 to 7, and with a "
    "scale for each output channel and place in the kernel of a convolution, not one for each output channel.",
)


def _modelopt(schedule: Schedule, profile: ModelProfile, notes: Sequence[str]) -> str:
    """Turn everything off, then give one entry per weight quantizer."""
    entries: list[dict[str, object]] = [{"quantizer_name": "*", "enable": False}]
    for layer, bits in bits_of(schedule).items():
        config = {"num_bits": bits, "axis": profile.layer(layer).channel_axis}
        entries.append({"quantizer_name": f"{layer}.weight_quantizer", "cfg": config})
    return noted({"quant_cfg": entries, "algorithm": "max"}, notes)


MODELOPT = ExportFormat(
    name="modelopt",
    title="NVIDIA Model-Optimizer",
    reader="modelopt: mtq.quantize(model, json.load(open(FILE)), forward_loop); weights only, one scale per channel.",
    suffix=".modelopt.json",
    usage=f"""\
import json
import modelopt.torch.quantization as mtq
from modelopt.torch.quantization.nn import QuantModuleRegistry
from torch import nn

config = json.load(open("FILE"))
config.pop("_notes", None)
for module in model.modules():  # modelopt takes no subclass, such as timm's Conv2dSame, unless it is registered
    for known in {_LAYERS}:
        if isinstance(module, known) and type(module) not in QuantModuleRegistry:
            QuantModuleRegistry.register({{type(module): type(module).__name__}})(QuantModuleRegistry.get(known))
model = mtq.quantize(model, config, lambda net: net(images))
""",
    compressions=("quantization",),
    render=_modelopt,
    reaches=has_own_weight,
    out_of_reach=_ATTENTION,
)
