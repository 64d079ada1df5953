"""How tests are spread over the workers of pytest-xdist: longest work first, and what shares a server on one worker."""

from __future__ import annotations

from pathlib import PurePosixPath

from xdist.scheduler import LoadFileScheduling

TOGETHER = ("tests/browser", "tests/cluster")
"""Folders whose tests share a server or a cluster, which is started once if one worker has them all."""

LONGEST = (
    "tests/browser",
    "tests/cluster",
    "tests/reference/test_architectures.py",
    "tests/unit/test_engine_level_batching.py",
    "tests/unit/test_runs_kill.py",
    "tests/reference/test_runs_process.py",
    "tests/reference/test_fasterai.py",
    "tests/reference/test_schedules_export_readback.py",
    "tests/unit/test_cli_apply.py",
    "tests/reference",
    "tests/pages",
)
"""Files and folders by the time that one work unit of them takes, longest first; the rest follows in its own order."""


def unit_of(nodeid: str) -> str:
    """Return what is given to one worker as a whole: the folder or the file of a test.

    >>> unit_of("tests/browser/test_journey.py::test_x[a/b]"), unit_of("tests/unit/test_demo.py::test_y")
    ('tests/browser', 'tests/unit/test_demo.py')
    """
    file = nodeid.split("::", 1)[0]
    folder = str(PurePosixPath(file).parent)
    return folder if folder in TOGETHER else file


def rank(nodeid: str) -> int:
    """Return the place of a test's unit in :data:`LONGEST`; units that are not there come last, in their own order."""
    file = nodeid.split("::", 1)[0]
    return next((place for place, start in enumerate(LONGEST) if file.startswith(start)), len(LONGEST))


class LongestFirst(LoadFileScheduling):
    """Gives each worker the next unit, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)
