"""The cells of fasterai's sensitivity notebook, in its order; the module with the names is all that differs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

SAMPLE_SHAPE = (2, 3, 16, 16)


def network() -> nn.Module:
    """Return a small network with random weights, the same in every process."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 5),
    ).eval()


def cells(module: Any, large_final: Any) -> dict[str, dict[str, float]]:
    """Run every cell and return what was measured, by cell and layer."""
    model, sample = network(), torch.randn(SAMPLE_SHAPE, generator=torch.Generator().manual_seed(1))

    def evaluate(changed: nn.Module) -> float:
        with torch.no_grad():
            return float(changed(sample).square().mean())

    analyzer = module.SensitivityAnalyzer(
        model,
        sample,
        evaluate,
        criteria=large_final,
        higher_is_better=False,
        metric_name="mean square",
        device="cpu",
        calibration_data=None,
    )
    assert analyzer.model is model
    assert analyzer.criteria is large_final
    assert isinstance(model[0], analyzer.COMPRESSIBLE_LAYERS)
    found = {}

    def keep(cell: str, result: Any) -> Any:
        found[cell] = {layer.name: layer.delta for layer in result.layers}
        return result

    result = keep("sparsity", analyzer.analyze(compression="sparsity", level=50))
    assert isinstance(result, module.SensitivityResult)
    result.summary(top=3)
    assert [layer.name for layer in result.top(3)] == [layer.name for layer in result.top(n=3, most_sensitive=True)]
    assert result.top(3, most_sensitive=False)[0].as_dict()["name"]
    result.plot(figsize=(14, 5))
    assert len(result.to_dataframe()) == len(result.layers)
    found["targets"] = result.to_layer_targets(model, target_pct=50, min_pct=10, max_pct=80, gamma=1.5)
    keep("filters", analyzer.analyze("sparsity", 50, granularity="filter", layers=["0", "3"], verbose=False))
    keep("nothing", analyzer.analyze("sparsity", 0, verbose=False))
    keep("everything", analyzer.analyze("sparsity", 100, verbose=False))
    eight = keep("8 bits", analyzer.analyze("quantization", 8, quant_per_channel=True, verbose=False))
    assert eight.compression_type == "quantization-8bit"
    assert set(eight.to_layer_targets(model, target_pct=40)) == set(found["8 bits"])
    keep("16 bits", analyzer.analyze("quantization", 16, verbose=False))
    keep("per tensor", analyzer.analyze("quantization", 4, quant_per_channel=False, verbose=False))
    acting = analyzer.analyze("quantization", 8, quant_activations=True, verbose=False)
    assert acting.compression_type == "quantization-8bit+act"
    assert analyzer.analyze("pruning", 30, verbose=False).compression_type == "pruning"
    for each in analyzer.sweep("sparsity", levels=[25, 75], verbose=False):
        keep(f"sweep {each.compression_level:g}", each)
    one_line = module.analyze_sensitivity(
        model, sample, evaluate, "sparsity", 50, criteria=large_final, higher_is_better=False, verbose=False
    )
    assert one_line.as_dict()["layers"][0]["name"] == "0"
    keep("one line", one_line)
    return found
