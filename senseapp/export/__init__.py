"""Schedules as target files: one file per format here, one line per format in :data:`FORMATS`."""

from senseapp.export.base import ExportFormat, check_schedule
from senseapp.export.csv_format import CSV
from senseapp.export.json_format import JSON
from senseapp.export.reading import read_schedule
from senseapp.export.yaml_format import YAML

__all__ = ["FORMATS", "ExportFormat", "check_schedule", "read_schedule"]

FORMATS: dict[str, ExportFormat] = {
    export_format.name: export_format
    for export_format in (
        JSON,
        CSV,
        YAML,
    )
}
