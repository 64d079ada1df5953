"""The files of one run; app and command line write the same folder, so either can resume it."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, TypeVar

from senseapp.core.codec import dumps, loads
from senseapp.core.errors import InvalidFile, NotFound, RunMismatch
from senseapp.core.files import fsync_folder, locked, replace_file, storage_errors
from senseapp.core.texts import first_names
from senseapp.records.answers import ChangedAnswers, FileAnswers
from senseapp.records.candidate import Candidate, Delivery, with_one_original
from senseapp.records.deployment import LayerTimes
from senseapp.records.layer_findings import Diagnosis, Int8Timing, QuantizationHistogram
from senseapp.records.measurement import LayerMeasurement, Reused, RunResult, latest
from senseapp.records.recommendation import Recommendation
from senseapp.records.schedule import StrongestFound, ValidationResult
from senseapp.records.spec import RunSpec

T = TypeVar("T")
PREFIXES: dict[type, str] = {
    ValidationResult: "validation",
    StrongestFound: "strongest",
    QuantizationHistogram: "histogram",
    Delivery: "delivery",
    LayerTimes: "times",
    Recommendation: "recommendation",
    ChangedAnswers: "changed",
    Diagnosis: "diagnosis",
    FileAnswers: "answers",
    Int8Timing: "int8",
}
"""Records that tasks on finished runs leave, with the beginnings of their files' names; a key follows."""


class Journal:
    """An append-only file of measurements in the order they were made, one JSON line each.

    A process that dies while it writes leaves a torn last line. Reading ignores it, and the next append cuts it
    off, so nothing but the measurement in flight is lost. One writer at a time. Methods raise as :class:`RunFolder`'s.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end: int | None = None  # bytes known to hold whole lines; None before the first append

    def append(self, measurement: LayerMeasurement) -> None:
        """Add one measurement; on return it is on the disk."""
        line = dumps(measurement).encode() + b"\n"
        with storage_errors(self._path.name):
            if self._end is None:
                self._end = sum(len(whole) + 1 for whole in self._whole_lines())
            with self._path.open("ab") as stream:
                stream.truncate(self._end)
                stream.write(line)
                stream.flush()
                os.fsync(stream.fileno())
            if self._end == 0:
                fsync_folder(self._path.parent)
            self._end += len(line)

    def begin_with(self, measurements: Iterable[LayerMeasurement]) -> None:
        """Replace what is there by ``measurements``, whole or not at all."""
        replace_file(self._path, b"".join(dumps(measurement).encode() + b"\n" for measurement in measurements))
        self._end = None

    def read(self) -> tuple[LayerMeasurement, ...]:
        """Return the appended records, without a torn last line; of one layer and level the last counts."""
        return latest(self.history())

    def history(self) -> Iterator[LayerMeasurement]:
        """Yield everything that was appended, also what a later measurement replaces; see :meth:`read`."""
        for number, line in enumerate(self._whole_lines(), start=1):
            try:
                yield loads(line, LayerMeasurement)
            except InvalidFile as error:
                raise InvalidFile(
                    f"Line {number} of {self._path.name} is damaged: {error} Delete this run and start it again."
                ) from error

    def count(self) -> int:
        """Return how many measurements were appended, those that replace an earlier one included."""
        return len(self._whole_lines())

    def _whole_lines(self) -> list[bytes]:
        with storage_errors(self._path.name):
            content = self._path.read_bytes() if self._path.exists() else b""
        *lines, _torn = content.split(b"\n")  # what follows the last newline was never finished
        # A power cut can leave zeros in place of the last block.
        return lines[:-1] if lines and not lines[-1].startswith(b"{") else lines


class RunFolder:
    """The files of one run.

    ``spec.json`` holds the settings, ``head.json`` what is known once the model is loaded (profile, baseline; a result
    without measurements), ``estimates.jsonl`` the whole quick scan, ``measurements.jsonl`` what was measured so far,
    ``reused.json`` how much of it another run gave, and ``result.json`` everything, once it is finished. Tasks on the
    run leave records such as ``validation-KEY.json``, the compressed model of a proof in ``compressed-KEY`` and a file
    that runs in ``deployed-KEY``, both with the suffix of their form. An empty ``begun-KEY`` stands for each task that
    was asked for and has not ended. Methods raise InvalidFile where a record is damaged or a newer senseapp wrote it,
    and StorageFailed where the disk refuses.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.measurements = Journal(path / "measurements.jsonl")
        self._spec_file = path / "spec.json"
        self._head_file = path / "head.json"
        self._estimates_file = path / "estimates.jsonl"
        self._reused_file = path / "reused.json"
        self._result_file = path / "result.json"

    def make(self) -> None:
        """Make the folder; one that exists is left as it is."""
        with storage_errors(f"the folder {self.path.name}"):
            self.path.mkdir(parents=True, exist_ok=True)

    def claim(self, spec: RunSpec) -> None:
        """Make this the folder of a run with these settings; a folder of the same run is left as it is.

        Settings of a run that never got as far as a loaded model are given up for the new ones. RunMismatch if it holds
        a run with other settings.
        """
        held = self.spec() if self._head_file.is_file() or self.finished else None
        if held is None:
            replace_file(self._spec_file, dumps(spec))
        elif replace(held, goal=spec.goal, target=spec.target) != spec:
            state = "a finished" if self.finished else "an unfinished"
            raise RunMismatch(
                f"{self.path} holds {state} run with other settings ({_differences(held, spec)}). "
                "Choose another folder, repeat those settings, or delete the folder."
            )

    def spec(self) -> RunSpec | None:
        """Return the settings this folder was claimed for, or None."""
        return read_record(self._spec_file, RunSpec)

    @property
    def finished(self) -> bool:
        """Whether the final result is here."""
        return self._result_file.is_file()

    def move_to(self, other: Self) -> None:
        """Move all files into another folder."""
        with storage_errors("the run"):
            for path in self.path.iterdir():
                path.rename(other.path / path.name)

    def save_head(self, head: RunResult) -> None:
        """Store the facts known before the first measurement."""
        replace_file(self._head_file, dumps(replace(head, measurements=(), estimates=())))

    def save_result(self, result: RunResult) -> None:
        """Keep the final result, whole or not at all."""
        replace_file(self._result_file, dumps(result))

    def load_result(self) -> RunResult:
        """Return the final result; raises NotFound where the run is not finished."""
        if (result := read_record(self._result_file, RunResult)) is not None:
            return result
        if self.is_claimed:
            raise NotFound(f"The run in {self.path.name} is not finished. Resume the analysis first.")
        missing = "is no folder of a run" if self.path.exists() else "is not there"
        found = "holds no run" if self.path.is_dir() else missing
        raise NotFound(f"{self.path.name} {found}. Name the folder that analyze or import wrote.")

    @property
    def is_claimed(self) -> bool:
        """Whether it is the folder of a run, finished or not."""
        return any(file.is_file() for file in (self._spec_file, self._head_file, self._result_file))

    def so_far(self) -> RunResult | None:
        """Return the final result, or what an unfinished run has found; None before its model was loaded."""
        if self.finished:
            return self.load_result()
        head = read_record(self._head_file, RunResult)
        return head and replace(head, measurements=self.measurements.read(), estimates=self.load_estimates() or ())

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
        is_known = self._reused_file.is_file() and self.measurements.count() > 0
        return read_record(self._reused_file, Reused) if is_known else None

    def save(self, key: str, record: object) -> None:
        """Keep the outcome of a task under its key."""
        replace_file(self._record_file(type(record), key), dumps(record))

    def load(self, kind: type[T], key: str) -> T | None:
        """Return the record of that kind and key, or None before there is one."""
        return read_record(self._record_file(kind, key), kind)

    def records(self, kind: type[T]) -> tuple[T, ...]:
        """Return every record of that kind, the oldest first."""
        with storage_errors(self.path.name):
            written = sorted((path.stat().st_mtime_ns, path) for path in self.path.glob(f"{PREFIXES[kind]}-*.json"))
            return tuple(_read_once(path, when) for when, path in written)

    def begin(self, key: str) -> None:
        """Remember that a proof, a histogram or a search was asked for."""
        with storage_errors(self.path.name):
            (self.path / f"begun-{key}").touch()

    def end(self, key: str) -> None:
        """Remove the request of a task whose outcome, or error, is known."""
        with storage_errors(self.path.name):
            (self.path / f"begun-{key}").unlink(missing_ok=True)

    def begun(self, key: str) -> bool:
        """Whether it was asked for and has not ended."""
        return (self.path / f"begun-{key}").is_file()

    def compressed_model(self, key: str) -> Path:
        """Return where the compressed model of the schedule called ``key`` is kept, as safetensors."""
        return self.path / f"compressed-{key}.safetensors"

    def deployed(self, key: str, suffix: str) -> Path:
        """Return where a file that a runtime runs is kept; ``suffix`` is that of the runtime's files."""
        return self.path / f"deployed-{key}{suffix}"

    def candidates(self) -> tuple[Candidate, ...]:
        """Return every candidate of the run, the latest of each file, in the order in which they were made.

        Of files of one form and schedule that were measured to be alike in all but their times, the first stands.
        """
        found = {each.file: each for delivery in self.records(Delivery) for each in delivery.candidates}
        apart = list[Candidate]()
        for one in found.values():
            if not any(one.is_like(other) for other in apart):
                apart.append(one)
        return with_one_original(apart)

    def candidate_file(self, candidate: Candidate) -> Path:
        """Return where the file of a candidate lies; NotFound where only its figures came, in a run file."""
        path = self.path / candidate.file
        if not path.is_file():
            raise NotFound("This file is not on this server: only its figures are. Make it again.")
        return path

    def save_answers(self, file: str, answers: FileAnswers) -> None:
        """Keep what the file of this name answers."""
        self.save(key_in(file), answers)

    def answers(self, candidate: Candidate) -> FileAnswers | None:
        """Return the predictions of a candidate's file; None where none were kept."""
        return self.load(FileAnswers, key_in(candidate.file))

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other processes from measuring into this folder; raises RunMismatch where one does."""
        with storage_errors(f"the folder {self.path.name}"):
            stream = (self.path / "lock").open("ab")
        with stream:
            if not locked(stream):
                raise RunMismatch(
                    f"Another senseapp is measuring into {self.path.name} right now. "
                    "Wait until it has finished, or choose another folder."
                )
            yield

    def _record_file(self, kind: type, key: str) -> Path:
        return self.path / f"{PREFIXES[kind]}-{key}.json"


def key_in(file: str) -> str:
    """Return the key in the name of a candidate's file; the forms of one network share their answers."""
    return file.partition("-")[2].partition(".")[0]


def read_record(path: Path, kind: type[T]) -> T | None:
    """Return the record in a file, or None where there is no file; raises as :class:`RunFolder` does."""
    if not path.is_file():
        return None
    try:
        with storage_errors(path.name):
            return loads(path.read_bytes(), kind)
    except InvalidFile as error:
        raise InvalidFile(f"{path.name}: {error}") from error


@lru_cache(maxsize=256)
def _read_once(path: Path, _when: int) -> Any:
    """Read a record once; a page asks for all proofs at each move of a slider."""
    kind = next(kind for kind, prefix in PREFIXES.items() if path.name.startswith(f"{prefix}-"))
    return loads(path.read_bytes(), kind)


def _differences(held: RunSpec, asked: RunSpec) -> str:
    """Name the first settings in which two runs differ."""
    parts = [(getattr(held, part), getattr(asked, part)) for part in ("model", "data", "sensitivity")]
    return first_names([name for a, b in parts for name in a.__slots__ if getattr(a, name) != getattr(b, name)])
