"""Our own YAML: the same content as the JSON."""

from __future__ import annotations

import yaml

from senseapp.export.base import ExportFormat
from senseapp.export.native import payload_of
from senseapp.results import ModelProfile, Schedule


def _render(schedule: Schedule, profile: ModelProfile) -> str:
    return yaml.safe_dump(payload_of(schedule), sort_keys=False, allow_unicode=True)


YAML = ExportFormat(
    name="yaml",
    title="YAML",
    reader="senseapp apply and your own scripts: the same content as the JSON.",
    suffix=".yaml",
    render=_render,
    mixes=True,
)
