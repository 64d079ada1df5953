"""Runs in fasterai's own environment: prints its deltas for a saved network and saved images as JSON.

Usage: ``python fasterai_deltas.py FILE``, where FILE holds a network, images and what is measured.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import matplotlib
import timm
import torch
import torch.nn.functional as F
from fasterai.analyze import sensitivity
from fasterai.analyze.sensitivity import SensitivityAnalyzer
from fasterai.core.criteria import large_final
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.peers import fasterai_notebook


def main() -> None:
    """Measure compressions at a level on all layers, and sparsity of each granularity on some."""
    torch.set_num_threads(1)
    case = torch.load(sys.argv[1], weights_only=True)
    model = timm.create_model(case["model"], num_classes=case["num_classes"]).eval()
    model.load_state_dict(case["weights"])

    def loss(network: nn.Module) -> float:
        with torch.no_grad():
            return float(F.cross_entropy(network(case["images"]), case["labels"]))

    found = {}
    for compression, level in case["compressions"]:
        analyzer = SensitivityAnalyzer(model, case["images"][:1], loss, higher_is_better=False, metric_name="loss")
        result = analyzer.analyze(compression, level, verbose=False)
        found[compression] = {layer.name: layer.delta for layer in result.layers}
    analyzer = SensitivityAnalyzer(model, case["images"][:1], loss, higher_is_better=False, metric_name="loss")
    for granularity in case["granularities"]:
        result = analyzer.analyze("sparsity", 50, granularity=granularity, layers=case["some_layers"], verbose=False)
        found[granularity] = {layer.name: layer.delta for layer in result.layers}
    matplotlib.use("Agg")
    with contextlib.redirect_stdout(sys.stderr):
        found["notebook"] = fasterai_notebook.cells(sensitivity, large_final)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
