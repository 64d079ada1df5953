"""Results as files: sensitivity tables of other tools, and runs to take to another server. No torch."""

from senseapp.exchange.distiller_reading import notes_on_names, read_distiller_csv
from senseapp.exchange.distiller_writing import can_be_distiller_csv, write_distiller_csv
from senseapp.exchange.run_file import RUN_FILE_SUFFIX
from senseapp.exchange.run_file_reading import ReadRunFile, read_run_file
from senseapp.exchange.run_file_writing import write_run_file

__all__ = [
    "RUN_FILE_SUFFIX",
    "ReadRunFile",
    "can_be_distiller_csv",
    "notes_on_names",
    "read_distiller_csv",
    "read_run_file",
    "write_distiller_csv",
    "write_run_file",
]
