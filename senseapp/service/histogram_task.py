"""One quantization histogram as a job: its outcome is a file of the run."""

from __future__ import annotations

from dataclasses import dataclass

from senseapp.results.histogram import QuantizationHistogram
from senseapp.service.run_task import FinishedRunTask, TaskContext, key_of
from senseapp.spec import dumps
from senseapp.spec.histogram import HistogramSpec
from senseapp.store import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramTask(FinishedRunTask[QuantizationHistogram]):
    """What is to be looked at: which tensor, on which grid."""

    spec: HistogramSpec

    @property
    def key(self) -> str:
        """Names its file."""
        return key_of(dumps(self.spec))

    def outcome(self, folder: RunFolder) -> QuantizationHistogram | None:
        """Return the histogram, or None before it is made."""
        return folder.load_histogram(self.key)

    def find_out(self, context: TaskContext) -> QuantizationHistogram:
        """Look at the tensor.

        Raises:
            MeasurementFailed: the layer has no finite values.
        """
        from senseapp.sensitivity.histograms import histogram_of

        folder = context.folder
        histogram = histogram_of(
            folder.load_result(), self.spec, data_roots=context.data_roots, progress=context.observer.phase
        )
        folder.save_histogram(self.key, histogram)
        return histogram
