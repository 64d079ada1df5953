"""Sensitivity results in the files of other tools: read as results of ours, and written from them. No torch."""

from senseapp.exchange.distiller_reading import read_distiller_csv
from senseapp.exchange.distiller_writing import can_be_distiller_csv, write_distiller_csv

__all__ = ["can_be_distiller_csv", "read_distiller_csv", "write_distiller_csv"]
