"""Runs in the environment of a library: applies target files to networks, prints what each did as JSON.

Usage: ``python export_readers.py FILE...``, in the folder of the files. The name of a file is
``NETWORK.COMPRESSION.TARGET.SUFFIX``, and ``FILE.lines`` holds the lines that apply it, which run as they are printed.
The last line is ``{name of the file: {layer: zeros, channels or bits}}``.
"""

from __future__ import annotations

import json
import os
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


def a_network(name: str = "chain") -> nn.Module:
    """Return the same network each time: a small one, or timm's EfficientNet-Lite0 with its ImageNet weights."""
    torch.manual_seed(0)
    if name == "chain":
        return Chain().eval()
    sys.path.append(str(Path(__file__).resolve().parents[2]))  # of libraries' environments ours is no part
    from senseapp.networks.sources.demo import load_efficientnet

    return load_efficientnet().module.requires_grad_(True)  # as whoever applies a file has it


def some_images(name: str = "chain") -> torch.Tensor:
    """Return two images for it."""
    torch.manual_seed(0)
    return torch.randn(2, 3, 8, 8) if name == "chain" else torch.randn(2, 3, 64, 64)


Scope = dict[str, Any]


def _layers(model: nn.Module) -> dict[str, Any]:
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, (nn.Conv2d, nn.Linear))}


def _zeros(scope: Scope) -> dict[str, int]:
    return {name: int((layer.weight == 0).sum()) for name, layer in _layers(scope["model"]).items()}


def _channels(scope: Scope) -> dict[str, int]:
    return {name: len(layer.weight) for name, layer in _layers(scope["model"]).items()}


def _nni3(scope: Scope) -> dict[str, int]:
    if "masks" in scope:
        return {name: int((mask["weight"] == 0).sum()) for name, mask in scope["masks"].items()}
    targets = {name: entry["weight"] for name, entry in scope["scales"].items()}
    return {name: int(target["quant_dtype"].removeprefix("int")) for name, target in targets.items()}


def _nni2(scope: Scope) -> dict[str, int]:
    if "masks" in scope:
        return {name: int((mask["weight"] == 0).sum()) for name, mask in scope["masks"].items()}
    wrapped = {name: module for name, module in scope["model"].named_modules() if hasattr(module, "config")}
    return {name: module.config["quant_bits"]["weight"] for name, module in wrapped.items()}


def _torchao(scope: Scope) -> dict[str, int]:
    model = scope["model"]
    model(scope["images"])
    types = {name: getattr(layer.weight, "target_dtype", None) for name, layer in _layers(model).items()}
    return {name: int(str(kind).removeprefix("torch.int")) for name, kind in types.items() if kind}


def _modelopt(scope: Scope) -> dict[str, int]:
    scope["model"](scope["images"])
    found = {}
    for name, layer in scope["model"].named_modules():
        quantizer = getattr(layer, "weight_quantizer", None)
        if quantizer is not None and quantizer.is_enabled:
            assert not layer.input_quantizer.is_enabled
            most = max(len(row.unique()) for row in quantizer(layer.weight).flatten(1))
            assert most <= 2**quantizer.num_bits, most
            found[name] = quantizer.num_bits
    return found


def _coloured(scope: Scope) -> dict[str, int]:
    """Return which nodes of the graph that Model Explorer makes of the ``.pt2`` the overlay colours."""
    from model_explorer.builtin_pytorch_exportedprogram_adapter import BuiltinPytorchExportedProgramAdapter

    config = scope["config"]
    settings = {"const_element_count_limit": 16}
    (graph,) = BuiltinPytorchExportedProgramAdapter().convert(config.model_sources[0]["url"], settings)["graphs"]
    overlay = json.loads(Path(config.node_data_sources[0]).read_text())
    nodes = {node.id: None for node in graph.nodes}
    return {name: int(name in nodes) for name in overlay["results"]}


def _leave_browser_closed(*_: Any) -> None:
    """Stand in for the one call of the lines that serves until it is stopped."""


_FOUND: dict[str, Callable[[Scope], dict[str, int]]] = {
    "fasterai-sparsifier": _zeros,
    "fasterai-pruner": _channels,
    "torch-pruning": _channels,
    "sparseml": _zeros,
    "nni2": _nni2,
    "nni3": _nni3,
    "torchao": _torchao,
    "modelopt": _modelopt,
    "model-explorer": _coloured,
}


def main() -> None:
    """Apply each file to a network of its own."""
    torch.set_num_threads(1)
    sys.path.insert(0, "")  # companions lie beside the files
    os.environ["MAX_TORCH"] = "9"  # SparseML takes no torch after 2.1 by itself; ours is shared with it
    found = {}
    for name in sys.argv[1:]:
        network, _, target, _ = name.split(".")
        scope: Scope = {"model": a_network(network), "images": some_images(network)}
        if target == "model-explorer":
            import model_explorer

            model_explorer.visualize_from_config = _leave_browser_closed
        exec(Path(f"{name}.lines").read_text(), scope)
        found[name] = _FOUND[target](scope)
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
