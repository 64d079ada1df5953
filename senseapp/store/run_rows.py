"""Rows of the database as records: the owner's view of a run, and that of somebody with its link."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from senseapp.results import RunRecord, RunState
from senseapp.spec import RunSpec, loads

SELECT_RUNS = "SELECT runs.*, COALESCE(people.name, '') AS owner_name FROM runs LEFT JOIN people USING (owner)"


def record_of(row: sqlite3.Row) -> RunRecord:
    """Return a row of :data:`SELECT_RUNS` as its owner sees it.

    Raises:
        InvalidFile: a newer senseapp wrote it.
    """
    return RunRecord(
        run_id=row["run_id"],
        owner=row["owner"],
        title=row["title"],
        spec=loads(row["spec"], RunSpec),
        state=RunState(row["state"]),
        created_seconds=row["created_seconds"],
        updated_seconds=row["updated_seconds"],
        headline=row["headline"],
        error=row["error"],
        link=row["link"],
        owner_name=row["owner_name"],
        num_bytes=row["num_bytes"],
        origin=row["origin"],
    )


def seen_by_link(record: RunRecord) -> RunRecord:
    """Return ``record`` as anybody with the link may know it.

    Without its id, its owner's, the server's paths, and the name of another run in the sentence on its origin; the
    result's notes say as much of that as others may know.
    """
    return replace(record, run_id=record.link, owner="", read_only=True, spec=record.spec.without_folders(), origin="")
