"""Schedules as target files: one file per format here, one line per format in :data:`FORMATS`."""

from senseapp.export.archive import MANIFEST_NAME, build_zip, export_zip
from senseapp.export.base import ExportFormat, check_schedule
from senseapp.export.model_explorer import model_explorer_overlay, schedule_values, sensitivity_values
from senseapp.export.reading import read_schedule
from senseapp.export.registry import FORMATS, export_format

__all__ = [
    "FORMATS",
    "MANIFEST_NAME",
    "ExportFormat",
    "build_zip",
    "check_schedule",
    "export_format",
    "export_zip",
    "model_explorer_overlay",
    "read_schedule",
    "schedule_values",
    "sensitivity_values",
]
