"""Runs kept for good: an index in SQLite, and one folder of plain files per run. No torch, no Streamlit.

A crash at any moment loses at most the measurement in flight.
"""

from senseapp.home import home
from senseapp.store.database import Database
from senseapp.store.disk import fsync_folder, replace_file, storage_errors
from senseapp.store.journal import Journal
from senseapp.store.run_folder import RunFolder
from senseapp.store.run_store import INTERRUPTED_SENTENCE, RunStore

__all__ = [
    "INTERRUPTED_SENTENCE",
    "Database",
    "Journal",
    "RunFolder",
    "RunStore",
    "fsync_folder",
    "home",
    "replace_file",
    "storage_errors",
]
