"""Sensitivity from a notebook: a drop-in for fasterai's analyzer, measured by prefix replay."""

from senseapp.api.analyzer import SensitivityAnalyzer, analyze_sensitivity
from senseapp.api.level_result import LayerSensitivity, LevelResult

__all__ = ["LayerSensitivity", "LevelResult", "SensitivityAnalyzer", "analyze_sensitivity"]
