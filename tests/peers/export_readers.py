"""Runs in the environment of a library: applies target files to a small network, prints what each did as JSON.

Usage: ``python export_readers.py FILE...``, where the name of a file says which library reads it:
``NAME.TARGET.json``. The last line is ``{name of the file: {layer: zeros, channels or bits}}``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

LAYERS = ("conv1", "conv2", "fc")


class Chain(nn.Module):
    """Two convolutions and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 20, 3, padding=1)
        self.fc = nn.Linear(20, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return (N, 10) scores."""
        return self.fc(self.conv2(self.conv1(images).relu()).relu().mean((2, 3)))


def a_network() -> Chain:
    """Return the same network each time."""
    torch.manual_seed(0)
    return Chain().eval()


def _fasterai_sparsifier(model: Chain, targets: Any) -> dict[str, int]:
    from fasterai.core.criteria import large_final
    from fasterai.sparse.sparsifier import Sparsifier

    Sparsifier(model, "weight", "local", large_final, layer_type=(nn.Conv2d, nn.Linear)).sparsify_model(targets)
    return {name: int((getattr(model, name).weight == 0).sum()) for name in LAYERS}


def _fasterai_pruner(model: Chain, targets: Any) -> dict[str, int]:
    from fasterai.core.criteria import large_final
    from fasterai.prune.pruner import Pruner

    Pruner(model, targets, "local", large_final, example_inputs=torch.zeros(1, 3, 8, 8)).prune_model()
    return {"conv1": model.conv1.out_channels, "conv2": model.conv2.out_channels, "fc": model.fc.out_features}


def _nni(model: Chain, targets: Any) -> dict[str, int]:
    from nni.compression.base.config import default_config_schema, trans_legacy_config_list
    from nni.compression.pruning import LevelPruner

    entries = trans_legacy_config_list(targets)
    if any("quant_dtype" in str(entry) for entry in entries):
        found = {}
        for entry in entries:
            default_config_schema("quantization").validate({"quant_dtype": None, **entry})
            settings = entry.get("target_settings", {}).get("weight", entry)
            found[entry["op_names"][0]] = int(settings["quant_dtype"].removeprefix("int"))
        return found
    _, masks = LevelPruner(model, entries).compress()
    return {name: int((mask["weight"] == 0).sum()) for name, mask in masks.items()}


def _torchao(model: Chain, targets: Any) -> dict[str, int]:
    from torchao.core.config import config_from_dict, config_to_dict
    from torchao.quantization import quantize_

    config = config_from_dict(targets)
    assert config_to_dict(config) == targets, config_to_dict(config)
    quantize_(model, config, filter_fn=None)
    model(torch.zeros(1, 3, 8, 8))
    return {name: int(str(getattr(model, name).weight.target_dtype).removeprefix("torch.int")) for name in LAYERS}


def _modelopt(model: Chain, targets: Any) -> dict[str, int]:
    import modelopt.torch.quantization as mtq

    quantized = mtq.quantize(model, targets, lambda net: net(torch.randn(4, 3, 8, 8)))
    found = {}
    for name in LAYERS:
        layer = getattr(quantized, name)
        assert layer.weight_quantizer.is_enabled
        assert not layer.input_quantizer.is_enabled
        most = max(len(row.unique()) for row in layer.weight_quantizer(layer.weight).flatten(1))
        assert most <= 2**layer.weight_quantizer.num_bits, most
        found[name] = layer.weight_quantizer.num_bits
    return found


_READERS: dict[str, Callable[[Chain, Any], dict[str, int]]] = {
    "fasterai-sparsifier": _fasterai_sparsifier,
    "fasterai-pruner": _fasterai_pruner,
    "nni2": _nni,
    "nni3": _nni,
    "torchao": _torchao,
    "modelopt": _modelopt,
}


def main() -> None:
    """Apply each file to a network of its own."""
    torch.set_num_threads(1)
    found = {}
    for path in map(Path, sys.argv[1:]):
        read = _READERS[path.name.split(".")[1]]
        found[path.name] = read(a_network(), json.loads(path.read_text()))
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
