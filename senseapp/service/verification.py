"""The proof of one schedule as a job: its outcome and the compressed model are files of the run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from senseapp.errors import NotFound
from senseapp.results import Schedule, ValidationResult
from senseapp.results.model_files import MODEL_FILES
from senseapp.service.run_task import FinishedRunTask, TaskContext, key_of
from senseapp.spec import CompressionConfig, dumps
from senseapp.store import RunFolder

REPAIR = "matched"
"""How repairs are made: proofs and searches of models that were repaired otherwise are not these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification(FinishedRunTask[ValidationResult]):
    """What is to be proven.

    The compressed model is measured on images that the curves have not seen, beside a uniform schedule of equal cost.

    Attributes:
        schedule: what is applied and measured.
        repair: whether it is repaired without training, where it measures better so.
        other: how the second run compresses, where the schedule was made from two.
    """

    keeps_model: ClassVar[bool] = True

    schedule: Schedule
    repair: bool = True
    other: CompressionConfig | None = None

    @property
    def key(self) -> str:
        """Names its files."""
        other = f" other={self.other}" if self.other else ""
        return key_of(f"{dumps(self.schedule)} repair={REPAIR if self.repair else False}{other}")

    def outcome(self, folder: RunFolder) -> ValidationResult | None:
        """Return what was measured, or None before it is."""
        return folder.load_validation(self.key)

    def find_out(self, context: TaskContext) -> ValidationResult:
        """Prove the schedule, and keep the compressed model too."""
        from senseapp.validation import validate, with_file_sizes, write_compressed  # torch loads here

        folder, progress = context.folder, context.observer.phase
        result = folder.load_result()
        proven = validate(
            result,
            self.schedule,
            repair=self.repair,
            other=self.other,
            data_roots=context.data_roots,
            progress=progress,
        )
        progress("Writing the compressed model")
        files, notes = write_compressed(proven.applied, folder.compressed_model(self.key), proven.example)
        validation = with_file_sizes(proven.result, files, proven.dense)
        validation = replace(validation, notes=(*validation.notes, *notes))
        folder.save_validation(self.key, validation)
        return validation

    def files(self, folder: RunFolder) -> tuple[Path, ...]:
        """Return the files of the compressed model, the plain state dict first.

        Raises:
            NotFound: the schedule is not proven yet.
        """
        weights = folder.compressed_model(self.key)
        if self.outcome(folder) is None or not weights.is_file():
            raise NotFound("This schedule is not proven yet, so there is no compressed model. Verify it first.")
        return tuple(path for form in MODEL_FILES if (path := weights.with_suffix(form.suffix)).is_file())
