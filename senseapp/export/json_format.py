"""Our own JSON: the whole schedule, read by ``senseapp apply`` and by any script."""

from __future__ import annotations

import json

from senseapp.export.base import ExportFormat
from senseapp.export.native import payload_of
from senseapp.results import ModelProfile, Schedule


def _render(schedule: Schedule, profile: ModelProfile) -> str:
    return json.dumps(payload_of(schedule), indent=2, allow_nan=False) + "\n"


JSON = ExportFormat(
    name="json",
    title="JSON",
    reader="senseapp apply and your own scripts: the whole schedule, levels in percent or bits.",
    suffix=".json",
    render=_render,
    mixes=True,
)
