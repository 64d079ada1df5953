"""The engine for notebooks, with the names and parameters of fasterai's sensitivity analysis."""

from senseapp.notebook.analyzer import SensitivityAnalyzer, analyze_sensitivity
from senseapp.notebook.level_result import LayerSensitivity, SensitivityResult

__all__ = ["LayerSensitivity", "SensitivityAnalyzer", "SensitivityResult", "analyze_sensitivity"]
