"""One quantization histogram as a job: its outcome is a file of the run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from senseapp.results.histogram import QuantizationHistogram
from senseapp.service.engine import load_engine
from senseapp.spec import dumps
from senseapp.spec.histogram import HistogramSpec
from senseapp.store import RunFolder

_KEY_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramTask:
    """What is to be looked at.

    Attributes:
        run_id: of the run whose model and images are taken.
        spec: which tensor, on which grid.
    """

    run_id: str
    spec: HistogramSpec

    @property
    def key(self) -> str:
        """Names its file: the same for the same question, whoever asks."""
        return hashlib.sha256(dumps(self.spec).encode()).hexdigest()[:_KEY_DIGITS]

    @property
    def job_id(self) -> str:
        """Names the job; no run and no proof has such an id."""
        return f"{self.run_id}:histogram:{self.key}"

    def carry_out(
        self, folder: RunFolder, *, progress: Callable[[str], None], data_roots: tuple[Path, ...] = ()
    ) -> QuantizationHistogram:
        """Look at the tensor, keep the outcome in ``folder``, and return it.

        Raises:
            NotFound: the run is not finished.
            InvalidInput: the model, the layer or the images cannot be used.
            MeasurementFailed: the layer has no finite values.
            StorageFailed: the file cannot be written.
        """
        known = folder.load_histogram(self.key)
        if known is not None:
            return known
        load_engine()
        from senseapp.sensitivity.histograms import histogram_of

        histogram = histogram_of(folder.load_result(), self.spec, data_roots=data_roots, progress=progress)
        folder.save_histogram(self.key, histogram)
        return histogram
