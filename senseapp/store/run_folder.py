"""One run's files; the command line writes the same folder as the app, so either can resume it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from senseapp.core.codec import dumps, loads
from senseapp.core.disk import replace_file, storage_errors
from senseapp.core.errors import InvalidFile, NotFound, RunMismatch
from senseapp.records.histogram import QuantizationHistogram
from senseapp.records.measurement import LayerMeasurement, Reused, SensitivityResult
from senseapp.records.schedule import StrongestFound, ValidationResult
from senseapp.records.spec import RunSpec
from senseapp.store.journal import Journal

RecordT = TypeVar("RecordT")


class RunFolder:
    """The files of one run.

    ``spec.json`` holds the settings, ``head.json`` what is known once the model is loaded (profile, baseline; a
    result without measurements), ``estimates.jsonl`` the whole quick scan, ``measurements.jsonl`` what was measured
    so far, and ``result.json`` everything, once it is finished. For each schedule that was proven there is a
    ``validation-KEY.json``, and its compressed model in ``compressed-KEY`` with the suffix of its form. Each
    quantization histogram that was asked for is a ``histogram-KEY.json``, and each search for the strongest schedule
    within a drop a ``strongest-KEY.json``.
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

    def num_bytes(self) -> int:
        """Return the disk space that the files take; 0 if the folder is gone."""
        found = 0
        for path in self.path.glob("*"):
            with suppress(OSError):  # a file that is replaced just now
                found += path.stat().st_size
        return found

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

    def take_over(self, measurements: tuple[LayerMeasurement, ...], reused: Reused | None) -> None:
        """Begin with measurements of another run, or with none and ``reused`` None; whole or not at all."""
        if reused is None:
            with storage_errors(self._reused_file.name):
                self._reused_file.unlink(missing_ok=True)  # of an attempt that died before it had taken any
            return
        replace_file(self._reused_file, dumps(reused))
        self.measurements.begin_with(measurements)

    def load_reused(self) -> Reused | None:
        """Return how much was taken from another run, or None if nothing was."""
        if not self._reused_file.is_file() or not self.measurements.count():
            return None
        with storage_errors(self._reused_file.name):
            return loads(self._reused_file.read_bytes(), Reused)

    def save_validation(self, key: str, validation: ValidationResult) -> None:
        """Keep the proof of the schedule called ``key``."""
        replace_file(self._validation_file(key), dumps(validation))

    def load_validation(self, key: str) -> ValidationResult | None:
        """Return the proof of the schedule called ``key``, or None before there is one.

        Raises:
            InvalidFile: the file is damaged, or a newer senseapp wrote it.
        """
        return _read(self._validation_file(key), ValidationResult)

    def validations(self) -> tuple[ValidationResult, ...]:
        """Return every proof of the run, the oldest first.

        Raises:
            InvalidFile: one is damaged, or a newer senseapp wrote it.
        """
        with storage_errors(self.path.name):
            written = sorted((path.stat().st_mtime_ns, path) for path in self.path.glob("validation-*.json"))
            return tuple(_validation(path, when) for when, path in written)

    def save_strongest(self, key: str, found: StrongestFound) -> None:
        """Keep the outcome of the search called ``key``."""
        replace_file(self._strongest_file(key), dumps(found))

    def load_strongest(self, key: str) -> StrongestFound | None:
        """Return the outcome of the search called ``key``, or None before there is one.

        Raises:
            InvalidFile: the file is damaged, or a newer senseapp wrote it.
        """
        return _read(self._strongest_file(key), StrongestFound)

    def save_histogram(self, key: str, histogram: QuantizationHistogram) -> None:
        """Keep the histogram called ``key``."""
        replace_file(self._histogram_file(key), dumps(histogram))

    def load_histogram(self, key: str) -> QuantizationHistogram | None:
        """Return the histogram called ``key``, or None before there is one.

        Raises:
            InvalidFile: the file is damaged, or a newer senseapp wrote it.
        """
        return _read(self._histogram_file(key), QuantizationHistogram)

    def histograms(self) -> tuple[QuantizationHistogram, ...]:
        """Return every histogram of the run, the oldest first.

        Raises:
            InvalidFile: one is damaged, or a newer senseapp wrote it.
        """
        with storage_errors(self.path.name):
            paths = sorted(self.path.glob("histogram-*.json"), key=lambda path: (path.stat().st_mtime, path.name))
            return tuple(loads(path.read_bytes(), QuantizationHistogram) for path in paths)

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

    def _strongest_file(self, key: str) -> Path:
        return self.path / f"strongest-{key}.json"

    def _histogram_file(self, key: str) -> Path:
        return self.path / f"histogram-{key}.json"

    @property
    def _spec_file(self) -> Path:
        return self.path / "spec.json"

    @property
    def _estimates_file(self) -> Path:
        return self.path / "estimates.jsonl"

    @property
    def _reused_file(self) -> Path:
        return self.path / "reused.json"

    @property
    def _head_file(self) -> Path:
        return self.path / "head.json"

    @property
    def _result_file(self) -> Path:
        return self.path / "result.json"


def _read(path: Path, kind: type[RecordT]) -> RecordT | None:
    if not path.is_file():
        return None
    with storage_errors(path.name):
        return loads(path.read_bytes(), kind)


@lru_cache(maxsize=256)
def _validation(path: Path, _when: int) -> ValidationResult:
    """Read a proof once; a page asks for all of them at each move of a slider."""
    return loads(path.read_bytes(), ValidationResult)


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
