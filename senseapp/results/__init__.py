"""Frozen records that the engine produces; tables and charts are views of them."""

from senseapp.metrics import MetricChange
from senseapp.results.jobs import JobSnapshot, RunRecord, RunState
from senseapp.results.measurement import LayerMeasurement, Status
from senseapp.results.profile import LayerProfile, ModelProfile, UnlistedWeights
from senseapp.results.schedule import (
    ExportManifest,
    ResourceBudget,
    Schedule,
    ScheduleEntry,
    StrongestFound,
    TriedTarget,
    ValidationResult,
)
from senseapp.results.sensitivity import SensitivityResult, latest

__all__ = [
    "ExportManifest",
    "JobSnapshot",
    "LayerMeasurement",
    "LayerProfile",
    "MetricChange",
    "ModelProfile",
    "ResourceBudget",
    "RunRecord",
    "RunState",
    "Schedule",
    "ScheduleEntry",
    "SensitivityResult",
    "Status",
    "StrongestFound",
    "TriedTarget",
    "UnlistedWeights",
    "ValidationResult",
    "latest",
]
