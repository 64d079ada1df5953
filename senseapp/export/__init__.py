"""Schedules as target files: one file per format here, one line per format in :data:`FORMATS`."""

from senseapp.export.archive import MANIFEST_NAME, ZIP_FORMAT, build_zip, export_zip
from senseapp.export.base import ExportFormat, check_schedule
from senseapp.export.model_explorer import (
    exported_graph,
    model_explorer_overlay,
    overlay_of,
    schedule_values,
    sensitivity_values,
)
from senseapp.export.reading import read_schedule
from senseapp.export.registry import FORMATS, export_format

__all__ = [
    "FORMATS",
    "MANIFEST_NAME",
    "ZIP_FORMAT",
    "ExportFormat",
    "build_zip",
    "check_schedule",
    "export_format",
    "export_zip",
    "exported_graph",
    "model_explorer_overlay",
    "overlay_of",
    "read_schedule",
    "schedule_values",
    "sensitivity_values",
]
