"""One run's files; the command line writes the same folder as the app, so either can resume it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from senseapp.errors import InvalidFile, NotFound, RunMismatch
from senseapp.results import LayerMeasurement, SensitivityResult, ValidationResult
from senseapp.results.histogram import QuantizationHistogram
from senseapp.spec import RunSpec, dumps, loads
from senseapp.store.disk import replace_file, storage_errors
from senseapp.store.journal import Journal

__all__ = ["RunFolder"]


class RunFolder:
    """The files of one run.

    ``spec.json`` holds the settings, ``head.json`` what is known once the model is loaded (profile, baseline; a
    result without measurements), ``estimates.jsonl`` the whole quick scan, ``measurements.jsonl`` what was measured
    so far, and ``result.json`` everything, once it is finished. For each schedule that was proven there is a
    ``validation-KEY.json``, and its compressed model in ``compressed-KEY`` with the suffix of its form. Each
    quantization histogram that was asked for is a ``histogram-KEY.json``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.measurements = Journal(path / "measurements.jsonl")

    def make(self) -> None:
        """Make the folder; one that exists is left as it is.

        Raises:
            StorageFailed: it cannot be made.
        """
        with storage_errors(f"the folder {self.path.name}"):
            self.path.mkdir(parents=True, exist_ok=True)

    def claim(self, spec: RunSpec) -> None:
        """Make this the folder of a run with these settings; a folder of the same run is left as it is.

        Settings of a run that never got as far as a loaded model are given up for the new ones.

        Raises:
            RunMismatch: it holds a run with other settings.
            InvalidFile: its settings cannot be read.
            StorageFailed: it cannot be written.
        """
        held = self.spec() if self._head_file.is_file() or self.finished else None
        if held is None:
            replace_file(self._spec_file, dumps(spec))
        elif held != spec:
            state = "a finished" if self.finished else "an unfinished"
            raise RunMismatch(
                f"{self.path} holds {state} run with other settings ({_differences(held, spec)}). "
                "Choose another folder, repeat those settings, or delete the folder."
            )

    def spec(self) -> RunSpec | None:
        """Return the settings this folder was claimed for, or None.

        Raises:
            InvalidFile: they cannot be read, or a newer senseapp wrote them.
        """
        if not self._spec_file.is_file():
            return None
        with storage_errors(self._spec_file.name):
            return loads(self._spec_file.read_bytes(), RunSpec)

    @property
    def finished(self) -> bool:
        """Whether the final result is here."""
        return self._result_file.is_file()

    def save_head(self, head: SensitivityResult) -> None:
        """Keep what is known before the first measurement."""
        replace_file(self._head_file, dumps(replace(head, measurements=(), estimates=())))

    def save_result(self, result: SensitivityResult) -> None:
        """Keep the final result, whole or not at all."""
        replace_file(self._result_file, dumps(result))

    def load_result(self) -> SensitivityResult:
        """Return the final result.

        Raises:
            NotFound: the run is not finished.
            InvalidFile: the file is damaged, or a newer senseapp wrote it.
        """
        if not self.finished:
            raise NotFound(f"{self.path.name} holds no finished run. Run or resume the analysis first.")
        return _load(self._result_file)

    def so_far(self) -> SensitivityResult | None:
        """Return the final result, or what an unfinished run has found; None before its model was loaded."""
        if self.finished:
            return self.load_result()
        if not self._head_file.is_file():
            return None
        head = _load(self._head_file)
        return replace(head, measurements=self.measurements.read(), estimates=self.load_estimates() or ())

    def save_estimates(self, estimates: tuple[LayerMeasurement, ...]) -> None:
        """Keep the outcome of a whole quick scan."""
        replace_file(self._estimates_file, "".join(dumps(estimate) + "\n" for estimate in estimates))

    def load_estimates(self) -> tuple[LayerMeasurement, ...] | None:
        """Return the outcome of the quick scan, or None before it is complete."""
        return Journal(self._estimates_file).read() if self._estimates_file.is_file() else None

    def save_validation(self, key: str, validation: ValidationResult) -> None:
        """Keep the proof of the schedule called ``key``."""
        replace_file(self._validation_file(key), dumps(validation))

    def load_validation(self, key: str) -> ValidationResult | None:
        """Return the proof of the schedule called ``key``, or None before there is one.

        Raises:
            InvalidFile: the file is damaged, or a newer senseapp wrote it.
        """
        path = self._validation_file(key)
        if not path.is_file():
            return None
        with storage_errors(path.name):
            return loads(path.read_bytes(), ValidationResult)

    def save_histogram(self, key: str, histogram: QuantizationHistogram) -> None:
        """Keep the histogram called ``key``."""
        replace_file(self._histogram_file(key), dumps(histogram))

    def load_histogram(self, key: str) -> QuantizationHistogram | None:
        """Return the histogram called ``key``, or None before there is one.

        Raises:
            InvalidFile: the file is damaged, or a newer senseapp wrote it.
        """
        path = self._histogram_file(key)
        if not path.is_file():
            return None
        with storage_errors(path.name):
            return loads(path.read_bytes(), QuantizationHistogram)

    def compressed_model(self, key: str) -> Path:
        """Return where the compressed model of the schedule called ``key`` is kept, as safetensors."""
        return self.path / f"compressed-{key}.safetensors"

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other processes from measuring into this folder; the system lifts the lock if this one dies.

        Raises:
            RunMismatch: another process is at it.
        """
        if os.name != "posix":  # flock has no counterpart elsewhere that a killed process gives up
            yield
            return
        import fcntl

        with storage_errors(f"the folder {self.path.name}"):
            stream = (self.path / "lock").open("ab")
        with stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RunMismatch(
                    f"Another senseapp is measuring into {self.path.name} right now. "
                    "Wait until it has finished, or choose another folder."
                ) from error
            yield

    def _validation_file(self, key: str) -> Path:
        return self.path / f"validation-{key}.json"

    def _histogram_file(self, key: str) -> Path:
        return self.path / f"histogram-{key}.json"

    @property
    def _spec_file(self) -> Path:
        return self.path / "spec.json"

    @property
    def _estimates_file(self) -> Path:
        return self.path / "estimates.jsonl"

    @property
    def _head_file(self) -> Path:
        return self.path / "head.json"

    @property
    def _result_file(self) -> Path:
        return self.path / "result.json"


def _load(path: Path) -> SensitivityResult:
    with storage_errors(path.name):
        text = path.read_bytes()
    try:
        return loads(text, SensitivityResult)
    except InvalidFile as error:
        raise InvalidFile(f"{path.name}: {error}") from error


def _differences(held: RunSpec, asked: RunSpec) -> str:
    """Name the first settings in which two runs differ, as ``levels (0.5,) instead of (0.25,)``."""
    found = []
    for part in ("model", "data", "sensitivity"):
        old, new = getattr(held, part), getattr(asked, part)
        found += [
            f"{name} {getattr(old, name)!r}, not {getattr(new, name)!r}"
            for name in old.__slots__
            if getattr(old, name) != getattr(new, name)
        ]
    return "; ".join(found[:2])
