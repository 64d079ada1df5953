"""The file that carries a finished run to another server: a zip of JSON records and safetensors, never pickle.

``run.json`` says what it is, ``result.json`` is the result; ``validation-KEY.json``, ``histogram-KEY.json`` and
``compressed-KEY.safetensors`` are what was made of it. Nothing else is written, and nothing else is read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from senseapp.results import ValidationResult
from senseapp.results.histogram import QuantizationHistogram
from senseapp.spec.codec import register

HEAD_NAME = "run.json"
RESULT_NAME = "result.json"
RUN_FILE_SUFFIX = ".senserun.zip"
WEIGHTS = re.compile(r"compressed-[0-9a-f]{16}\.safetensors")

_EXTRAS: tuple[tuple[re.Pattern[str], type], ...] = (
    (re.compile(r"validation-[0-9a-f]{16}\.json"), ValidationResult),
    (re.compile(r"histogram-[0-9a-f]{16}\.json"), QuantizationHistogram),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFileHead:
    """What is in a run file.

    Attributes:
        title: of the run.
        written_by: version of senseapp.
    """

    title: str
    written_by: str = ""


register(RunFileHead)


def extra_record(name: str) -> type | None:
    """Return the record that a member of this name holds, or None if it is not one of the extra records."""
    return next((record for pattern, record in _EXTRAS if pattern.fullmatch(name)), None)


def extra_files(folder: Path) -> list[Path]:
    """Return the files of a run's folder that go into its run file beside the result, by name."""
    found = (path for path in folder.iterdir() if extra_record(path.name) or WEIGHTS.fullmatch(path.name))
    return sorted(found)
