"""The files that ``analyze`` leaves beside ``result.json``."""

from __future__ import annotations

import json
from pathlib import Path

from senseapp.results import SensitivityResult
from senseapp.service.default_targets import default_targets
from senseapp.service.sensitivity_table import sensitivity_csv
from senseapp.store import replace_file


def write_outputs(result: SensitivityResult, folder: Path) -> tuple[Path, ...]:
    """Write ``sensitivity.csv`` and ``targets.json`` into ``folder`` and return their paths.

    Raises:
        StorageFailed: they cannot be written.
    """
    table, targets = folder / "sensitivity.csv", folder / "targets.json"
    replace_file(table, sensitivity_csv(result))
    replace_file(targets, json.dumps(default_targets(result), indent=2, allow_nan=False) + "\n")
    return table, targets
