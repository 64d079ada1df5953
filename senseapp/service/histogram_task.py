"""One quantization histogram as a job: its outcome is a file of the run."""

from __future__ import annotations

from dataclasses import dataclass

from senseapp.results.histogram import QuantizationHistogram
from senseapp.service.engine import load_engine
from senseapp.service.run_task import TaskContext, key_of
from senseapp.spec import dumps
from senseapp.spec.histogram import HistogramSpec


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
        return key_of(dumps(self.spec))

    @property
    def job_id(self) -> str:
        """Names the job; no run and no proof has such an id."""
        return f"{self.run_id}:histogram:{self.key}"

    def carry_out(self, context: TaskContext) -> QuantizationHistogram:
        """Look at the tensor, keep the outcome in the run's folder, and return it.

        Raises:
            NotFound: the run is not finished.
            InvalidInput: the model, the layer or the images cannot be used.
            MeasurementFailed: the layer has no finite values.
            StorageFailed: the file cannot be written.
        """
        folder = context.folder
        known = folder.load_histogram(self.key)
        if known is not None:
            return known
        load_engine()
        from senseapp.sensitivity.histograms import histogram_of

        histogram = histogram_of(
            folder.load_result(), self.spec, data_roots=context.data_roots, progress=context.observer.phase
        )
        folder.save_histogram(self.key, histogram)
        return histogram
