"""What a report is made of."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from senseapp.results import Schedule, SensitivityResult, ValidationResult
from senseapp.results.histogram import QuantizationHistogram


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportContents:
    """A run and everything that was made of it.

    Attributes:
        title: what people call the run.
        result: what it found, so far if it has not finished.
        headline: the finding in one sentence.
        schedules: those that are shown without a proof.
        validations: the proofs of schedules.
        histograms: those that somebody looked at.
        finished: whether the run is.
        made_seconds: when the report is made, Unix time.
    """

    title: str
    result: SensitivityResult
    headline: str
    schedules: tuple[Schedule, ...] = ()
    validations: tuple[ValidationResult, ...] = ()
    histograms: tuple[QuantizationHistogram, ...] = ()
    finished: bool = True
    made_seconds: float = field(default_factory=time.time)
