"""The engine for notebooks, with the names and parameters of fasterai's sensitivity analysis."""

from senseapp.notebook.analyzer import SensitivityAnalyzer, analyze_sensitivity
from senseapp.notebook.level_result import LayerSensitivity, LevelResult, SensitivityResult

__all__ = ["LayerSensitivity", "LevelResult", "SensitivityAnalyzer", "SensitivityResult", "analyze_sensitivity"]
