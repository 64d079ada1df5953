"""Hostile and damaged annotations of pictures, read as the page and a run read them.

    python -m soak.annotations [--changed 100] [--seed S]

Every file by hand (:mod:`soak.annotation_files`), then so many valid ones with changed bytes. Each archive is
surveyed by a process that answers requests, with its limits, and then loaded as a run loads it, by a process that is
ended after ten minutes. Exits with 0 if each was refused with one sentence, lost a picture with one, or was read
whole; if no picture or box was lost without a word; and if each took at most 10 s of processor time and 400 MB.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from senseapp.core.errors import SenseError
from senseapp.records.spec import DataSpec
from senseapp.server.process.processes import JobProcess, answer_in
from senseapp.server.process.requester import file_request
from senseapp.server.run_requests import survey
from soak.annotation_files import HEIGHT, PICTURES, WIDTH, BadAnnotation, by_hand, mutated
from soak.served import MB
from tests.pictures import write_zip

MOST_SECONDS = 10.0
MOST_BYTES = 400 * MB
LONGEST_SENTENCE = 1000
_PATIENCE_SECONDS = 600.0  # beside other work; the limit is one of processor time
_CLASSES = ("background", "cat", "dog")
_SUFFIX = ".zip"


def outcome_of(bad: BadAnnotation, path: Path) -> str:
    """Load an archive as a run does; return ``refused``, ``left out`` or ``read``, else what is wrong."""
    from senseapp.data.load import load_images  # torch loads here, in the process that reads
    from senseapp.networks.loaded import Preprocessing
    from senseapp.tasks import task_named

    small = Preprocessing(input_shape=(3, HEIGHT, WIDTH), mean=(0.5,) * 3, std=(0.5,) * 3, fit="pad")
    spec = DataSpec(kind="archive", path=str(path))
    try:
        images = load_images(spec, small, num_classes=3, task=task_named(bad.task), class_names=_CLASSES)
    except SenseError as error:
        return _checked("refused", bad, str(error))
    except Exception as error:  # whatever else comes is what this looks for
        return f"{type(error).__name__}: {error}"[:300]
    said = " ".join(images.notes)
    lost = set(PICTURES) - set(images.names)
    if lost and not all(name in said for name in lost) and "left out" not in said:
        return f"{sorted(lost)} lost without a word: {said[:300]!r}"
    if images.labels is None:
        return _checked("left out", bad, said) if "No picture has" in said else f"read nothing: {said[:300]!r}"
    return _checked("left out" if lost or "1 annotation in" in said else "read", bad, said)


def _checked(outcome: str, bad: BadAnnotation, said: str) -> str:
    """Return ``outcome`` if it is allowed and what was said can be shown, else what is wrong."""
    if (said or outcome != "read") and (not said.isprintable() or not 0 < len(said) <= LONGEST_SENTENCE):
        return f"{outcome} and said {said[:300]!r}"
    if outcome not in bad.allowed:
        return f"{outcome}, not {' or '.join(bad.allowed)}: {said[:300]!r}"
    return outcome


def _serve(asked: Connection) -> None:
    """Load what is asked for, one after the other, and answer with outcome, processor time and most memory."""
    while True:
        bad, path = asked.recv()
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        outcome = outcome_of(bad, path)
        grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        asked.send((outcome, time.process_time() - began, grown))


class Loader:
    """A process that loads archives as runs do, and is ended where it takes too long."""

    def __init__(self) -> None:
        self._start()

    def load(self, bad: BadAnnotation, path: Path) -> tuple[str, float, int]:
        """Return what became of an archive, seconds of processor time, and how many bytes more were in use."""
        self._asked.send((bad, path))
        with suppress(EOFError):
            if self._asked.poll(_PATIENCE_SECONDS):
                found: tuple[str, float, int] = self._asked.recv()
                return found
        self.close()
        self._start()
        return "the process ended or took more than ten minutes", _PATIENCE_SECONDS, 0

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()

    def _start(self) -> None:
        spawned = multiprocessing.get_context("spawn")
        self._asked, other = spawned.Pipe()
        self._process = spawned.Process(target=_serve, args=(other,), daemon=True)
        self._process.start()
        other.close()


def surveyed(process: JobProcess, bad: BadAnnotation, path: Path) -> tuple[str, float]:
    """Return what is wrong with the answer that the page gets, empty for nothing, and its seconds of processor time."""
    data = DataSpec(kind="archive", path=str(path))
    question = file_request(partial(survey, data, bad.task, 3, _CLASSES, (path.parent,)), str(path))
    process.send("warm")
    process.warm.wait()
    before = process.processor_seconds
    try:
        said = " ".join(answer_in(process, question).notes)
    except SenseError as error:
        said = str(error)
    seconds = process.processor_seconds - before
    is_shown = said.isprintable() and len(said) <= LONGEST_SENTENCE
    return ("" if is_shown else f"the page says {said[:300]!r}"), seconds


def read_all(files: Iterator[BadAnnotation], folder: Path) -> tuple[Counter[str], tuple[float, str], list[str]]:
    """Survey and load each archive; return how many ended how, the slowest, and what is wrong."""
    counts, slowest, wrong = Counter[str](), (0.0, ""), []
    process = JobProcess()
    with closing(Loader()) as loader:
        for number, bad in enumerate(files):
            path = write_zip(folder / f"{number}{_SUFFIX}", bad.files)
            process = process if process.alive else JobProcess()
            complaint, first = surveyed(process, bad, path)
            outcome, second, grown = loader.load(bad, path)
            if number and grown > MOST_BYTES:
                complaint = complaint or f"{grown / MB:.0f} MB"
            if max(first, second) > MOST_SECONDS:
                complaint = complaint or f"took {max(first, second):.1f} s"
            if complaint or outcome not in bad.allowed:
                wrong.append(f"{bad.family}: {complaint or outcome}")
                sys.stdout.write(wrong[-1] + "\n")
                sys.stdout.flush()
            counts[outcome if outcome in bad.allowed else "wrong"] += 1
            slowest = max(slowest, (max(first, second) if number else 0.0, bad.family))
            path.unlink()
    process.close()
    return counts, slowest, wrong


def main() -> int:
    """Read every archive, and say what became of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changed", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="families whose names begin so")
    given = parser.parse_args()
    files = (bad for bad in chain(by_hand(), mutated(given.changed, given.seed)) if bad.family.startswith(given.only))
    with tempfile.TemporaryDirectory() as folder:
        counts, slowest, wrong = read_all(files, Path(folder))
    own = psutil.Process().memory_info().rss / MB
    sys.stdout.write(
        f"{counts.total()} archives: {dict(counts)}, the slowest took {slowest[0]:.1f} s of processor time "
        f"({slowest[1]}); {own:.0f} MB in this process\n"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
