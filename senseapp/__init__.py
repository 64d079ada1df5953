"""Which layers of a neural network are fragile, which can be compressed, and per-layer schedules from that.

Names are resolved on first use, so that importing the package does not load torch.
"""

import importlib

_HOMES = {
    "LayerSensitivity": "senseapp.notebook.level_result",
    "RunResult": "senseapp.records.measurement",
    "SensitivityResult": "senseapp.notebook.level_result",
    "SensitivityAnalyzer": "senseapp.notebook.analyzer",
    "analyze_sensitivity": "senseapp.notebook.analyzer",
    "histogram": "senseapp.views.charts.histograms",
    "measure": "senseapp.measure.sweep",
    "open_onnx": "senseapp.notebook.inputs",
    "make_schedule": "senseapp.solve.methods",
}

__version__ = "0.1.0"

__all__ = [*_HOMES]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
